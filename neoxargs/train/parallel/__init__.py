"""Tensor and pipeline parallelism, put into the model from outside."""
