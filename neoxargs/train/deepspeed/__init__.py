"""All code that relies on private names of DeepSpeed: patches, optimizer state, 1-bit optimizers, NVMe swapping."""
