"""Conversions of weights between our form and theirs, in both directions.

Tensors may be on the device "meta" if only shapes are of interest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from neoxargs.train.checkpoint.neox.head_order import join_heads, split_heads


class Sizes(NamedTuple):
    """The sizes of the model that the conversions need."""

    queries: int
    """Query heads per key and value head."""
    groups: int
    """Number of key and value heads."""
    vocabulary: int
    """Number of rows of the embedding."""
    offset: int = 0
    """Number of rows of the position table that precede the row of position 0 (`opt_pos_emb_offset`)."""


class Form(NamedTuple):
    """A conversion of one of our weights to one or several of theirs, and its inverse."""

    to_theirs: Callable[[Tensor, Sizes], list[Tensor]]
    to_ours: Callable[[Sequence[Tensor], Sizes], Tensor]


def _split_heads(x: Tensor, sizes: Sizes) -> list[Tensor]:
    return split_heads(x, sizes.groups, sizes.queries)


def _join_heads(parts: Sequence[Tensor], sizes: Sizes) -> Tensor:
    return join_heads(parts, sizes.groups, sizes.queries)


def _join_fused(x: Tensor, sizes: Sizes) -> Tensor:
    width = len(x) // (sizes.groups * (sizes.queries + 2))
    keys = sizes.groups * width
    return _join_heads(x.split([keys * sizes.queries, keys, keys]), sizes)


def _swapped(x: Tensor) -> Tensor:
    return torch.cat(x.chunk(2)[::-1])


SAME = Form(lambda x, _: [x], lambda parts, _: parts[0])
#: Padding rows are not exported. Those that a layout needs are added when a run loads the checkpoint.
VOCABULARY = Form(lambda x, sizes: [x[: sizes.vocabulary]], lambda parts, _: parts[0])
POSITIONS = Form(lambda x, sizes: [x[sizes.offset :]], lambda parts, _: parts[0])
HEADS = Form(_split_heads, _join_heads)
#: A gated projection: the value, then the gate.
HALVES = Form(lambda x, _: list(x.chunk(2)), lambda parts, _: torch.cat(list(parts)))
#: The gate, then the value, in one matrix.
GATE_FIRST = Form(lambda x, _: [_swapped(x)], lambda parts, _: _swapped(parts[0]))
#: One matrix with all queries, then all keys, then all values.
FUSED_HEADS = Form(
    lambda x, sizes: [torch.cat(_split_heads(x, sizes))], lambda parts, sizes: _join_fused(parts[0], sizes)
)
#: GPT-2's matrices are (inputs, outputs).
TRANSPOSED = Form(lambda x, _: [x.t()], lambda parts, _: parts[0].t())
#: GPT-2 has one matrix with all queries, then all keys, then all values.
TRANSPOSED_HEADS = Form(
    lambda x, sizes: [torch.cat(_split_heads(x, sizes)).t()],
    # Three equal parts, because GPT-2 has no grouped queries.
    lambda parts, sizes: _join_heads(parts[0].t().chunk(3), sizes),
)
#: The matrices of all experts, stacked; theirs are one per expert, or a value and a gate.
EXPERTS = Form(lambda x, _: list(x), lambda parts, _: torch.stack(list(parts)))
EXPERT_HALVES = Form(
    lambda x, _: [half for matrix in x for half in matrix.chunk(2)],
    lambda parts, _: torch.stack(
        [torch.cat((value, gate)) for value, gate in zip(parts[::2], parts[1::2], strict=True)]
    ),
)
