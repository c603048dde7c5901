"""The two borders of a tensor parallel region: what is the same on every rank goes in, a sum over ranks comes out.

megatron-core's `mappings` has both, but its all-reduce silently does nothing on a tensor that is not contiguous
and its other mappings ask for CUDA.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from neoxargs.train.mesh import Axis


def copy_to_ranks(x: Tensor, axis: Axis) -> Tensor:
    """x itself; its gradient is the sum of all ranks' gradients."""
    return x if axis.size == 1 else _Copy.apply(x, axis)  # type: ignore[no-untyped-call]


def sum_over_ranks(x: Tensor, axis: Axis) -> Tensor:
    """The sum of all ranks' x, in x's memory; its gradient goes to every rank unchanged."""
    return x if axis.size == 1 else _Sum.apply(x, axis)  # type: ignore[no-untyped-call]


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis) -> Tensor:
        ctx.group = axis.group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis) -> Tensor:
        assert x.is_contiguous()
        ctx.mark_dirty(x)
        dist.all_reduce(x, group=axis.group)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None
