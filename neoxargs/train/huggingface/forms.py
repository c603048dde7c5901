"""How a weight of ours becomes theirs and theirs becomes ours, where more than the name differs.

Each form undoes itself. Tensors may be on the device "meta": then only their shapes are of interest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Sizes(NamedTuple):
    """What a form must know of the model."""

    queries: int
    """Query heads per key and value head."""
    groups: int
    """Key and value heads."""
    vocabulary: int
    offset: int = 0
    """Rows of the position table before that of position 0."""


class Form(NamedTuple):
    apart: Callable[[Tensor, Sizes], list[Tensor]]
    together: Callable[[Sequence[Tensor], Sizes], Tensor]


def _heads_apart(x: Tensor, sizes: Sizes) -> list[Tensor]:
    """(groups x (queries + key + value) x head_dim, …) -> queries, keys, values, each head by head."""
    by_group = x.reshape(sizes.groups, sizes.queries + 2, -1, *x.shape[1:])
    return [part.flatten(0, 2) for part in torch.split(by_group, [sizes.queries, 1, 1], dim=1)]


def _heads_together(parts: Sequence[Tensor], sizes: Sizes) -> Tensor:
    counts = (sizes.queries, 1, 1)
    by_group = [x.reshape(sizes.groups, count, -1, *x.shape[1:]) for x, count in zip(parts, counts, strict=True)]
    return torch.cat(by_group, dim=1).flatten(0, 2)


SAME = Form(lambda x, _: [x], lambda parts, _: parts[0])
#: Rows beyond the vocabulary are left out; those that a run needs are added when it loads.
VOCABULARY = Form(lambda x, sizes: [x[: sizes.vocabulary]], lambda parts, _: parts[0])
POSITIONS = Form(lambda x, sizes: [x[sizes.offset :]], lambda parts, _: parts[0])
HEADS = Form(_heads_apart, _heads_together)
#: What is gated, then its gate.
HALVES = Form(lambda x, _: list(x.chunk(2)), lambda parts, _: torch.cat(list(parts)))
#: GPT-2's matrices are (inputs, outputs).
TURNED = Form(lambda x, _: [x.t()], lambda parts, _: parts[0].t())
#: And its queries, keys and values are one matrix, without heads between them.
TURNED_HEADS = Form(
    lambda x, sizes: [torch.cat(_heads_apart(x, sizes)).t()],
    lambda parts, sizes: _heads_together(parts[0].t().chunk(3), sizes),
)
