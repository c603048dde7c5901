"""Tensor, sequence and expert parallelism: weights that are divided, their collectives, initial values and norms."""
