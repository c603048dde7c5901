"""Causal attention within documents in torch's flash kernel, which takes them as sequences of different lengths.

No mask is made and no pair of tokens of different documents is computed. The kernel needs the number of documents on
the host, which waits for it once per micro batch.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from neoxargs.train.ops.tables import Tables


@cache
def kernel() -> Any:
    """Return torch's `varlen_attn`, of torch 2.13 and newer."""
    from torch.nn.attention.varlen import varlen_attn

    return varlen_attn


def attend(query_BNSH: Tensor, key_BKSH: Tensor, value_BKSH: Tensor, window: int, bounds: Tensor) -> Tensor:
    """Return context_BNSH. window: number of tokens before itself that a token sees, 0 for all. bounds: as below."""
    batch, heads, seq, _ = query_BNSH.shape
    query, key, value = (x.transpose(1, 2).flatten(0, 1) for x in (query_BNSH, key_BKSH, value_BKSH))
    side = window if 0 < window < seq - 1 else -1
    # Both are upper bounds of a document's length: the exact one would have to be waited for.
    context = kernel()(
        query, key, value, bounds, bounds, seq, seq, window_size=(side, 0), enable_gqa=key.shape[1] < heads
    )
    context_BNSH: Tensor = context.unflatten(0, (batch, seq)).transpose(1, 2)
    return context_BNSH


def document_bounds(batch: int, seq: int, device: torch.device, starts_BS: Tensor | None, tables: Tables) -> Tensor:
    """Return where documents begin in the concatenated samples, and their end, int32: (documents + 1).

    starts_BS: the position where each token's document begins; None if each sample is one.
    """
    if starts_BS is None:
        key = ("bounds", batch, seq, device)
        return tables.get(key, lambda: torch.arange(batch + 1, dtype=torch.int32, device=device) * seq)
    return tables.derived(("bounds", device), starts_BS, lambda: _bounds(starts_BS))


def _bounds(starts_BS: Tensor) -> Tensor:
    begins = starts_BS == torch.arange(starts_BS.shape[1], device=starts_BS.device)
    first = begins.flatten().nonzero().flatten()
    return torch.cat([first, first.new_tensor([starts_BS.numel()])]).to(torch.int32)
