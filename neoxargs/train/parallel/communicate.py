"""Communication at the borders of a tensor parallel region, with gradients.

A region's input is the same on every rank, its output is a sum over the ranks. With `sequence_parallel` each rank holds
a shard of the sequence between regions, (B, S / ranks, …): the input is gathered, the output is reduced and
scattered (Korthikanti et al. 2022, arXiv:2205.05198).

megatron-core's `mappings` has the same functions, but its all-reduce silently does nothing on a tensor that is not
contiguous, and its other mappings need CUDA.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from neoxargs.train.autograd import apply, linear
from neoxargs.train.parallel.positions import Positions
from neoxargs.train.process.collectives import all_to_all, gather, start_scatter, start_sum
from neoxargs.train.process.mesh import Axis

#: A function of a rank's tensor that communicates over an axis.
_OfRanks = Callable[[Tensor, Axis], Tensor]


def copy_to_ranks(x: Tensor, axis: Axis) -> Tensor:
    """Return x, of any shape; its gradient is the sum of all ranks' gradients."""
    return _communicated(x, axis, lambda x, axis: x.view_as(x), _summed)


def sum_over_ranks(x: Tensor, axis: Axis) -> Tensor:
    """Sum x, contiguous and of any shape, over the ranks in place; every rank gets the gradient unchanged."""
    return x if axis.size == 1 else apply(_Sum, x, axis)


def gather_sequence(x: Tensor, axis: Axis) -> Tensor:
    """Gather the sequence: (B, S / ranks, …) -> (B, S, …). Gradients are summed and scattered."""
    return _communicated(x, axis, _gathered, _scattered)


def gather_replicated(x: Tensor, axis: Axis) -> Tensor:
    """`gather_sequence` for a tensor that every rank uses in the same way, so that each has its full gradient."""
    return _communicated(x, axis, _gathered, _own_shard)


def reduce_scatter_sequence(x: Tensor, axis: Axis) -> Tensor:
    """Return this rank's shard of the sum of x over the ranks: (B, S, …) -> (B, S / ranks, …)."""
    return _communicated(x, axis, _scattered, _gathered)


def enter_region(x: Tensor, tensor: Axis, sequence: Axis) -> Tensor:
    """Return x for a region, in which each rank computes a summand of its gradient; a shard of x is gathered."""
    return gather_sequence(x, sequence) if sequence.size > 1 else copy_to_ranks(x, tensor)


def leave_region(x: Tensor, tensor: Axis, sequence: Axis) -> Tensor:
    """Sum x over the tensor parallel ranks; with sequence parallelism return this rank's shard. May overwrite x."""
    return reduce_scatter_sequence(x, sequence) if sequence.size > 1 else sum_over_ranks(x, tensor)


def enter_and_multiply(x: Tensor, weight: Tensor, bias: Tensor | None, tensor: Axis, sequence: Axis) -> Tensor:
    """`F.linear(enter_region(x), weight, bias)` that communicates x's gradient while it computes the weight's.

    With sequence parallelism, it saves only this rank's shard of x, and gathers it again later.
    """
    if tensor.size == 1 or torch.is_autocast_enabled(x.device.type):  # autocast casts in F.linear, not in _Multiply
        return F.linear(enter_region(x, tensor, sequence), weight, bias)
    gathers = sequence.size > 1
    return apply(_Multiply, x, weight, bias, sequence if gathers else tensor, gathers)


def gather_positions(x: Tensor, own: Positions) -> Tensor:
    """Gather the positions of all ranks: (B, S / ranks, …) -> (B, S, …), of which every rank computes the same loss.

    The gradient of a rank's positions is multiplied by the number of ranks, over which gradients are then averaged.
    """

    def of_own(gradient: Tensor, axis: Axis) -> Tensor:
        return _own_shard(gradient, axis) * axis.size

    return x if own.context.size == 1 else own.in_order(_communicated(x, own.context, _gathered, of_own))


def positions_to_heads(x: Tensor, axis: Axis) -> Tensor:
    """Exchange the heads of this rank's positions for its share of the heads: (B, S / ranks, N, …) -> (B, S, N / ranks,
    …), as in DeepSpeed-Ulysses (Jacobs et al. 2023, arXiv:2309.14509)."""
    return _communicated(x, axis, _to_heads, _to_positions)


def heads_to_positions(x: Tensor, axis: Axis) -> Tensor:
    """Undo `positions_to_heads`: (B, S, N / ranks, …) -> (B, S / ranks, N, …)."""
    return _communicated(x, axis, _to_positions, _to_heads)


def _communicated(x: Tensor, axis: Axis, function: _OfRanks, transposed: _OfRanks) -> Tensor:
    """Return `function` of x on all ranks of the axis, with `transposed` for the gradient; x if there is one rank."""
    return x if axis.size == 1 else linear(x, lambda x: function(x, axis), lambda gradient: transposed(gradient, axis))


#: Attribute of weights whose gradients are partial on each rank: a PartialGradient.
PARTIAL = "partial_gradient"


class PartialGradient(NamedTuple):
    """The ranks over which a weight's gradient is summed, and the hook that sums it in each backward pass."""

    group: dist.ProcessGroup | None
    hook: RemovableHandle


def register_gradient_sum(weights: Iterable[nn.Parameter], axis: Axis) -> None:
    """Sum over the ranks the gradients of weights that are equal on all ranks but have other inputs on each.

    `sum_once_per_step` of engine/partial_gradients.py replaces these hooks by one all-reduce per step.
    """

    def over_ranks(gradient: Tensor) -> Tensor:
        # all_reduce needs contiguous memory, and autograd may pass an expanded gradient.
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=axis.group)
        return gradient

    for weight in weights if axis.size > 1 else ():
        setattr(weight, PARTIAL, PartialGradient(axis.group, weight.register_hook(over_ranks)))


class _Multiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, axis: Axis, gathers: bool) -> Tensor:
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
        ctx.axis, ctx.gathers = axis, gathers
        return F.linear(_gathered(x, axis) if gathers else x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        # x is None if the weight is frozen; its gradient is needed in any case, for the layers before.
        x, weight = ctx.saved_tensors
        x_gradient = gradient @ weight
        if ctx.gathers:
            # Both collectives are started in the same order on every rank: scatter of x's gradient, then gather of x.
            wait = _start_scatter(x_gradient, ctx.axis)
            if x is not None and torch.compiler.is_compiling():
                x = _copy_after(x, x_gradient)  # else the compiler would gather once, and store the result
            x = None if x is None else _gathered(x, ctx.axis)
        else:
            wait = start_sum(x_gradient, ctx.axis.group)
        # Flat, (T, outputs): the sums over batch and sequence are one matrix product.
        gradient = gradient.flatten(0, -2)
        of_weight = None if x is None else gradient.t() @ x.flatten(0, -2)
        of_bias = gradient.sum(0) if ctx.needs_input_grad[2] else None
        return wait(), of_weight, of_bias, None, None


@torch.library.custom_op("neoxargs::copy_after", mutates_args=())
def _copy_after(x: Tensor, earlier: Tensor) -> Tensor:
    """Return a copy of x, which a compiled graph makes when it has `earlier`."""
    return x.clone()


@_copy_after.register_fake
def _(x: Tensor, earlier: Tensor) -> Tensor:
    return torch.empty_like(x)


def _gathered(shard: Tensor, axis: Axis) -> Tensor:
    # (ranks, B, S / ranks, …): collectives concatenate along the first dimension only.
    return gather(shard.contiguous(), axis.group).transpose(0, 1).flatten(1, 2)


def _own_shard(x: Tensor, axis: Axis) -> Tensor:
    return x.chunk(axis.size, dim=1)[axis.rank].contiguous()


def _scattered(x: Tensor, axis: Axis) -> Tensor:
    return _start_scatter(x, axis)()


def _start_scatter(x: Tensor, axis: Axis) -> Callable[[], Tensor]:
    """Start a reduce-scatter; return what waits for this rank's shard."""
    # (ranks, B, S / ranks, …)
    return start_scatter(x.unflatten(1, (axis.size, -1)).transpose(0, 1).contiguous(), axis.group)


def _to_heads(x: Tensor, axis: Axis) -> Tensor:
    # (ranks, B, S / ranks, N / ranks, …): what goes to each rank, and what comes from each.
    pieces = x.unflatten(2, (axis.size, -1)).movedim(2, 0).contiguous()
    return all_to_all(pieces, axis.group).transpose(0, 1).flatten(1, 2)


def _to_positions(x: Tensor, axis: Axis) -> Tensor:
    pieces = x.unflatten(1, (axis.size, -1)).transpose(0, 1).contiguous()
    return all_to_all(pieces, axis.group).movedim(0, 2).flatten(2, 3)


def _summed(x: Tensor, axis: Axis) -> Tensor:
    return start_sum(x.contiguous(), axis.group)()


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis) -> Tensor:
        assert x.is_contiguous()
        if not torch.compiler.is_compiling():
            ctx.mark_dirty(x)  # autograd has to know that x is overwritten
        return start_sum(x, axis.group)()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        # Behind the sum, all ranks compute the same, so each has the full gradient already.
        return gradient, None
