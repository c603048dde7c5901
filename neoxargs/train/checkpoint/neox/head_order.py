"""The order of the rows of queries, keys and values in deepy's fused weight: by group of heads that share a key.

Tensors may be on the device "meta" if only shapes are of interest.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def split_heads(x: Tensor, groups: int, queries: int) -> list[Tensor]:
    """(groups x (queries + key + value) x head_dim, ...) -> queries, keys and values, each (heads x head_dim, ...).

    queries: query heads per key and value head.
    """
    by_group = x.reshape(groups, queries + 2, -1, *x.shape[1:])
    return [part.flatten(0, 2) for part in torch.split(by_group, [queries, 1, 1], dim=1)]


def join_heads(parts: Sequence[Tensor], groups: int, queries: int) -> Tensor:
    """Return the fused weight of queries, keys and values."""
    counts = (queries, 1, 1)
    by_group = [x.reshape(groups, count, -1, *x.shape[1:]) for x, count in zip(parts, counts, strict=True)]
    return torch.cat(by_group, dim=1).flatten(0, 2)
