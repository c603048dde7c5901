"""Samples that hold several documents: where each document begins.

`pack_impl: best_fit` knows it from the packing. With `reset_position_ids` or `reset_attention_mask` it is computed from
the tokens, which only the first pipeline stage has. In both cases the start positions are therefore passed from layer
to layer together with the hidden states.
"""

from __future__ import annotations

import torch
from torch import Tensor

from neoxargs.registry.data import Data

#: Input and output of a layer: hidden states (batch, seq, hidden), or the pair of these and `starts` (batch, seq).
LayerInput = Tensor | tuple[Tensor, Tensor]


def needs_document_starts(data: Data) -> bool:
    """Whether the layers after the embedding need to know where documents begin, and only the tokens tell."""
    return data.reset_position_ids or data.reset_attention_mask


def document_starts(tokens: Tensor, eod: int) -> Tensor:
    """(batch, seq) tokens -> (batch, seq): the position in the sample at which the token's document begins.

    As in Megatron, the token `eod` is the last one of its document.
    """
    positions = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
    # An eod at position i starts a document at i + 1; rolling by one makes the eod itself belong to the one it ends.
    starts = torch.where(tokens == eod, positions, 0).cummax(dim=1).values
    return starts.roll(1, dims=1).index_fill(1, torch.zeros(1, dtype=torch.int64, device=tokens.device), 0)


def positions_in_document(starts: Tensor) -> Tensor:
    """(batch, seq) document starts -> (batch, seq): the position of each token within its document."""
    return torch.arange(starts.shape[1], device=starts.device) - starts


def same_document(starts: Tensor) -> Tensor:
    """(batch, 1, seq, seq): whether the tokens of the row and of the column belong to the same document."""
    return (starts[:, :, None] == starts[:, None, :]).unsqueeze(1)


def unpack(inputs: LayerInput) -> tuple[Tensor, Tensor | None]:
    """Split a layer's input into hidden states and document starts (None if they are not passed along)."""
    return (inputs, None) if isinstance(inputs, Tensor) else inputs


def pack(hidden: Tensor, starts: Tensor | None) -> LayerInput:
    """Combine hidden states, or tokens, and document starts (batch, seq) into the input of the next layer."""
    return hidden if starts is None else (hidden, starts)
