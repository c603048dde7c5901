"""The shortest configuration that resolves, for tests of other things, and a large one."""

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

#: 1.2 billion parameters: does not fit a GPU of 24 GB with this batch size.
BILLION = """\
num_layers: 24
hidden_size: 2048
num_attention_heads: 16
seq_length: 2048
max_position_embeddings: 2048
train_micro_batch_size_per_gpu: 8
train_iters: 1000
precision: fp16
tokenizer_type: ByteLevelTokenizer
"""
