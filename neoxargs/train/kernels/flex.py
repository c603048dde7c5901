"""Block-sparse attention on a GPU: torch's flex_attention, which skips the blocks that are not read.

It compiles a kernel for each pattern, knows no dropout, and wants heads that are a power of two wide.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor

from neoxargs.train.kernels.sparsity import Pattern, own_layout
from neoxargs.train.process.mesh import Axis


def fits(query: Tensor, pattern: Pattern, dropout: float) -> bool:
    """Can it compute this? Otherwise the same pattern is a mask for torch's ordinary attention."""
    width = query.shape[-1]
    powers = width >= 16 and width & (width - 1) == 0
    return query.is_cuda and powers and not dropout and query.shape[2] <= pattern.seq_length


def attend_blocks(query: Tensor, key: Tensor, value: Tensor, pattern: Pattern, axis: Axis) -> Tensor:
    """(batch, heads / tensor ranks, seq, head_dim) of each -> the same of what was read."""
    mask = _block_mask(pattern, axis, query.shape[2], query.device)
    found: Tensor = _kernel(query.is_cuda)(query, key, value, block_mask=mask, enable_gqa=key.shape[1] < query.shape[1])
    return found


@cache
def _kernel(compiled: bool) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention) if compiled else flex_attention


@lru_cache(maxsize=8)
def _block_mask(pattern: Pattern, axis: Axis, seq: int, device: torch.device) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    blocks, size = own_layout(pattern, axis).to(device), pattern.block
    heads = blocks.shape[0]

    # What is compiled into the kernel closes over tensors and numbers only.
    def reads(batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        own = head if heads > 1 else 0
        return (row >= column) & blocks[own, row // size, column // size]

    return create_block_mask(reads, None, heads if heads > 1 else None, seq, seq, device=str(device))
