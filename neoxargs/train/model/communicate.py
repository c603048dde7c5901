"""The borders of a tensor parallel region: what is the same on every rank goes in, a sum over ranks comes out.

megatron-core's `mappings` has both, but its all-reduce silently does nothing on a tensor that is not contiguous
and its other mappings ask for CUDA.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from neoxargs.train.mesh import Axis


def copy_to_ranks(x: Tensor, axis: Axis) -> Tensor:
    """x itself; its gradient is the sum of all ranks' gradients."""
    return x if axis.size == 1 else _Copy.apply(x, axis)  # type: ignore[no-untyped-call]


def sum_over_ranks(x: Tensor, axis: Axis) -> Tensor:
    """The sum of all ranks' x, in x's memory; its gradient goes to every rank unchanged."""
    return x if axis.size == 1 else _Sum.apply(x, axis)  # type: ignore[no-untyped-call]


def copy_and_multiply(x: Tensor, weight: Tensor, bias: Tensor | None, axis: Axis) -> Tensor:
    """`F.linear(copy_to_ranks(x), weight, bias)`, sending the gradient of x while that of the weight is computed."""
    if axis.size == 1 or torch.is_autocast_enabled(x.device.type):  # autocast looks into F.linear, not into _Multiply
        return F.linear(copy_to_ranks(x, axis), weight, bias)
    return _Multiply.apply(x, weight, bias, axis)  # type: ignore[no-untyped-call, no-any-return]


class _Multiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, axis: Axis) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.group, ctx.biased = axis.group, bias is not None
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x = gradient @ weight
        sent = dist.all_reduce(of_x, group=ctx.group, async_op=True)
        gradient = gradient.flatten(0, -2)
        of_weight = gradient.t() @ x.flatten(0, -2)
        of_bias = gradient.sum(0) if ctx.biased else None
        sent.wait()
        return of_x, of_weight, of_bias, None


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
