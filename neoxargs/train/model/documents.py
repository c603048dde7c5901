"""Samples that hold several documents: where each begins, read from the tokens.

Only the first pipeline stage has the tokens, so the beginnings travel beside the hidden states, and only when
`reset_position_ids` or `reset_attention_mask` asks for them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from neoxargs.registry.data import Data

#: What layers hand on: hidden states (batch, seq, hidden), or these and `starts`.
Carried = Tensor | tuple[Tensor, Tensor]


def travel(data: Data) -> bool:
    """Do later layers need to know where documents begin?"""
    return data.reset_position_ids or data.reset_attention_mask


def starts(tokens: Tensor, eod: int) -> Tensor:
    """(batch, seq) -> (batch, seq): the place in the sample where the token's document begins.

    `eod` ends a document and belongs to it, as in Megatron.
    """
    places = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
    begun = torch.where(tokens == eod, places, 0).cummax(dim=1).values
    return begun.roll(1, dims=1).index_fill(1, torch.zeros(1, dtype=torch.int64, device=tokens.device), 0)


def positions(starts: Tensor) -> Tensor:
    """(batch, seq): how far into its document each token is."""
    return torch.arange(starts.shape[1], device=starts.device) - starts


def same_document(starts: Tensor) -> Tensor:
    """(batch, 1, seq, seq): are the row's token and the column's of one document?"""
    return (starts[:, :, None] == starts[:, None, :]).unsqueeze(1)


def opened(carried: Carried) -> tuple[Tensor, Tensor | None]:
    """Hidden states, and the beginnings if they travel along."""
    return (carried, None) if isinstance(carried, Tensor) else carried


def closed(hidden: Tensor, starts: Tensor | None) -> Carried:
    return hidden if starts is None else (hidden, starts)
