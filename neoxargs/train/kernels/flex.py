"""Block-sparse attention on GPUs with torch's flex_attention, which skips blocks that are not attended to.

It compiles a kernel for each pattern, has no dropout, and needs a head dimension that is a power of two.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor

from neoxargs.train.kernels.sparsity import Pattern, local_layout
from neoxargs.train.process.mesh import Axis


def is_supported(query: Tensor, pattern: Pattern, dropout: float) -> bool:
    """Whether flex_attention can compute this; otherwise the pattern becomes a mask for torch's ordinary attention."""
    width = query.shape[-1]
    power_of_two = width >= 16 and width & (width - 1) == 0
    return query.is_cuda and power_of_two and not dropout and query.shape[2] <= pattern.seq_length


def attend_blocks(query: Tensor, key: Tensor, value: Tensor, pattern: Pattern, axis: Axis) -> Tensor:
    """Attend to the pattern's blocks: (batch, heads / tensor ranks, seq, head_dim) of each -> the query's shape."""
    mask = _block_mask(pattern, axis, query.shape[2], query.device)
    context: Tensor = _kernel(query.is_cuda)(
        query, key, value, block_mask=mask, enable_gqa=key.shape[1] < query.shape[1]
    )
    return context


@cache
def _kernel(compiled: bool) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention) if compiled else flex_attention


@lru_cache(maxsize=8)
def _block_mask(pattern: Pattern, axis: Axis, seq: int, device: torch.device) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    blocks, size = local_layout(pattern, axis).to(device), pattern.block
    heads = blocks.shape[0]

    # torch.compile needs a function that closes over tensors and numbers only.
    def attends(batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        index = head if heads > 1 else 0
        return (row >= column) & blocks[index, row // size, column // size]

    return create_block_mask(attends, None, heads if heads > 1 else None, seq, seq, device=str(device))
