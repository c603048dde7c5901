"""The borders of a tensor parallel region: what is the same on every rank goes in, a sum over ranks comes out.

With `sequence_parallel` each rank keeps a shard of the sequence between regions, (batch, seq / ranks, …): what goes in
is gathered, what comes out is summed and scattered.

megatron-core's `mappings` has all of them, but its all-reduce silently does nothing on a tensor that is not contiguous
and its other mappings ask for CUDA.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from neoxargs.train.process.mesh import Axis


def copy_to_ranks(x: Tensor, axis: Axis) -> Tensor:
    """x itself; its gradient is the sum of all ranks' gradients."""
    return x if axis.size == 1 else _Copy.apply(x, axis)  # type: ignore[no-untyped-call]


def sum_over_ranks(x: Tensor, axis: Axis) -> Tensor:
    """The sum of all ranks' x, in x's memory; its gradient goes to every rank unchanged."""
    return x if axis.size == 1 else _Sum.apply(x, axis)  # type: ignore[no-untyped-call]


def gather(x: Tensor, axis: Axis) -> Tensor:
    """(batch, seq / ranks, …) -> (batch, seq, …); a shard's gradient is the sum of all ranks' gradients of it."""
    return x if axis.size == 1 else _Gather.apply(x, axis)  # type: ignore[no-untyped-call]


def sum_and_scatter(x: Tensor, axis: Axis) -> Tensor:
    """(batch, seq, …) -> (batch, seq / ranks, …): this rank's shard of the sum of all ranks' x."""
    return _Scatter.apply(x, axis)  # type: ignore[no-untyped-call, no-any-return]


def leave_region(x: Tensor, tensor: Axis, shards: Axis) -> Tensor:
    """The sum of all tensor parallel ranks' x, or this rank's shard of it; in x's memory where possible."""
    return sum_and_scatter(x, shards) if shards.size > 1 else sum_over_ranks(x, tensor)


def gather_and_multiply(x: Tensor, weight: Tensor, bias: Tensor | None, axis: Axis) -> Tensor:
    """`F.linear(gather(x), weight, bias)` that keeps only x for the backward pass."""
    if torch.is_autocast_enabled(x.device.type):
        return F.linear(gather(x, axis), weight, bias)
    return _GatherAndMultiply.apply(x, weight, bias, axis)  # type: ignore[no-untyped-call, no-any-return]


def sum_gradients(weights: Iterable[nn.Parameter], axis: Axis) -> None:
    """Add up the gradients of weights that are the same on all ranks but see other inputs on each."""

    def over_ranks(gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=axis.group)
        return gradient

    for weight in weights if axis.size > 1 else ():
        weight.register_hook(over_ranks)  # type: ignore[no-untyped-call]


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
        of_weight, of_bias = _of_parameters(gradient, x, ctx.biased)
        sent.wait()
        return of_x, of_weight, of_bias, None


def _of_parameters(gradient: Tensor, x: Tensor, biased: bool) -> tuple[Tensor, Tensor | None]:
    """The gradients of a product's weight and bias; computed while the one of `x` travels."""
    gradient = gradient.flatten(0, -2)
    return gradient.t() @ x.flatten(0, -2), gradient.sum(0) if biased else None


class _GatherAndMultiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, axis: Axis) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.axis, ctx.biased = axis, bias is not None
        return F.linear(_gathered(x, axis), weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        shard, weight = ctx.saved_tensors
        of_x, sent = _scattered(gradient @ weight, ctx.axis)
        x = _gathered(shard, ctx.axis)
        of_weight, of_bias = _of_parameters(gradient, x, ctx.biased)
        sent.wait()
        return of_x, of_weight, of_bias, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis) -> Tensor:
        ctx.axis = axis
        return _gathered(x, axis)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        shard, sent = _scattered(gradient, ctx.axis)
        sent.wait()
        return shard, None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis) -> Tensor:
        ctx.axis = axis
        shard, sent = _scattered(x, axis)
        sent.wait()
        return shard

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _gathered(gradient, ctx.axis), None


def _gathered(shard: Tensor, axis: Axis) -> Tensor:
    shards = shard.new_empty((axis.size, *shard.shape))
    dist.all_gather(list(shards), shard.contiguous(), group=axis.group)
    return shards.transpose(0, 1).flatten(1, 2)


def _scattered(x: Tensor, axis: Axis) -> tuple[Tensor, Any]:
    """This rank's shard, and what to wait for before it is there."""
    shards = x.unflatten(1, (axis.size, -1)).transpose(0, 1).contiguous()  # type: ignore[no-untyped-call]
    mine = torch.empty_like(shards[0])
    return mine, dist.reduce_scatter(mine, list(shards), group=axis.group, async_op=True)


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
