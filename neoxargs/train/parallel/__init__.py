"""Tensor and pipeline parallelism, applied to the model from outside."""
