"""Everything that relies on DeepSpeed's private names: patches, its optimizers' state, 1-bit, NVMe."""
