"""Functions of tensors: attention, rotary embeddings, experts, scans, sparsity; what compiles or recomputes them."""
