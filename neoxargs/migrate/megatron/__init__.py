"""Scripts that start Megatron-LM and its descendants."""
