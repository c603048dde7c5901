"""The shortest configuration that can be a run, for tests that are about something else."""

from __future__ import annotations

YAML = """\
num_layers: 2
hidden_size: 64
num_attention_heads: 4
seq_length: 32
max_position_embeddings: 32
train_micro_batch_size_per_gpu: 2
train_iters: 10
"""
