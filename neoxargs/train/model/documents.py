"""Samples that hold several documents: where each document begins.

`pack_impl: best_fit` knows it from the packing. With `reset_position_ids` or `reset_attention_mask` it is computed from
the tokens, which only the first pipeline stage has. In both cases the start positions are therefore passed from layer
to layer together with the hidden states.
"""

from __future__ import annotations

import torch
from torch import Tensor

from neoxargs.registry.data import Data

#: Input and output of a layer: hidden_BSD, or the pair of hidden_BSD and starts_BS.
LayerInput = Tensor | tuple[Tensor, Tensor]


def needs_document_starts(data: Data) -> bool:
    """Whether the layers after the embedding need to know where documents begin, and only the tokens tell."""
    return data.reset_position_ids or data.reset_attention_mask


def document_starts(tokens_BS: Tensor, eod: int) -> Tensor:
    """Return starts_BS: the position in the sample at which the token's document begins.

    As in Megatron, the token `eod` is the last one of its document.
    """
    positions_S = torch.arange(1, tokens_BS.shape[1] + 1, device=tokens_BS.device)
    # An eod at position i starts a document at i + 1; rolling by one makes the eod itself belong to the one it ends.
    starts_BS = torch.where(tokens_BS == eod, positions_S, 0).cummax(dim=1).values
    return starts_BS.roll(1, dims=1).index_fill(1, torch.zeros(1, dtype=torch.int64, device=tokens_BS.device), 0)


def positions_in_document(starts_BS: Tensor) -> Tensor:
    """Return the position of each token within its document, (B, S)."""
    return torch.arange(starts_BS.shape[1], device=starts_BS.device) - starts_BS


def document_lengths(starts_BS: Tensor) -> Tensor:
    """Return the number of tokens of each token's document in the sample, (B, S)."""
    seq = starts_BS.shape[1]
    ends_S = torch.arange(1, seq + 1, device=starts_BS.device)
    is_last_BS = starts_BS.roll(-1, dims=1) != starts_BS
    ends_BS = torch.where(is_last_BS, ends_S, seq).flip(1).cummin(dim=1).values.flip(1)
    return ends_BS - starts_BS


def same_document(starts_BS: Tensor) -> Tensor:
    """(B, 1, S, C): whether the tokens of the row and of the column belong to the same document."""
    return (starts_BS[:, :, None] == starts_BS[:, None, :]).unsqueeze(1)


def unpack(inputs: LayerInput) -> tuple[Tensor, Tensor | None]:
    """Split a layer's input into hidden states and document starts (None if they are not passed along)."""
    return (inputs, None) if isinstance(inputs, Tensor) else inputs


def pack(hidden: Tensor, starts_BS: Tensor | None) -> LayerInput:
    """Combine hidden_BSD, or tokens_BS, and document starts into the input of the next layer."""
    return hidden if starts_BS is None else (hidden, starts_BS)
