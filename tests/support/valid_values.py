"""Some valid values of any parameter, and the smallest file that they can be added to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from neoxargs.registry import REGISTRY
from neoxargs.resolve.values.coerce import Mismatch, coerce

SIZES = """\
num_layers: 4
hidden_size: 64
num_attention_heads: 4
seq_length: 16
max_position_embeddings: 16
train_iters: 10
train_batch_size: 4
"""
VALUES = (True, False, 2, 0.5, 8, "data/text", "none", "all", "interspersed", "llama", "regular", "local", "megablocks",
          "a/b", [1], [["a"]], ["a"])  # fmt: skip


def values(name: str) -> Iterator[Any]:
    """Yield some valid values of the parameter."""
    parameter = REGISTRY.find(name)
    assert parameter
    for value in VALUES:
        try:
            coerce(value, parameter.type)
        except Mismatch:
            continue
        yield value
