"""Communication between ranks where torch.distributed's functions depend on the backend, or on torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def reduce_scatter(own: Tensor, x: Tensor, group: dist.ProcessGroup | None = None, async_op: bool = False) -> Any:
    """Sum the flat x over the ranks. own: this rank's view of x, one of as many equal parts as there are ranks.

    The rest of x is undefined afterwards.
    """
    assert own.data_ptr() == x.data_ptr() + dist.get_rank(group) * own.numel() * x.element_size()
    # The newer name of the same function, in torch from 2.13.
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return scatter(own, x, group=group, async_op=async_op)


def of_all_ranks(value: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
    """Return the values of all ranks, in their order; in a program without ranks, the value alone. Collective."""
    if not dist.is_initialized():
        return [value]
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group)
    return values


def start_sum(x: Tensor, group: dist.ProcessGroup | None) -> Callable[[], Tensor]:
    """Start to sum the contiguous x over the ranks; return what waits for the sum, and returns it.

    The sum is written over x, but for compiled graphs, in which only functional operations can be.
    """
    if torch.compiler.is_compiling():
        return _when_done(_functional.all_reduce(x, "sum", _name(group)))
    return _waiting(dist.all_reduce(x, group=group, async_op=True), x)


def start_scatter(summands: Tensor, group: dist.ProcessGroup | None) -> Callable[[], Tensor]:
    """Start to sum the contiguous (ranks, …) over the ranks; return what waits for this rank's part, (…)."""
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    flat = has_flat_collectives(group)
    if torch.compiler.is_compiling():
        if not flat:
            summed = start_sum(summands, group)
            return lambda: summed()[rank]
        part = _functional.reduce_scatter_tensor(summands.flatten(0, 1), "sum", size, _name(group))
        return _when_done(part)
    local = torch.empty_like(summands[0])
    if flat:
        work = dist.reduce_scatter_tensor(local, summands, group=group, async_op=True)
    else:
        work = dist.reduce_scatter(local, list(summands), group=group, async_op=True)
    return _waiting(work, local)


def gather(shard: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Return the contiguous shards of all ranks: (…) -> (ranks, …)."""
    size = dist.get_world_size(group)
    if torch.compiler.is_compiling():
        shards = _when_done(_functional.all_gather_into_tensor(shard, size, _name(group)))()
        return shards.view(size, *shard.shape)
    shards = shard.new_empty((size, *shard.shape))
    if has_flat_collectives(group):
        dist.all_gather_into_tensor(shards, shard, group=group)
    else:
        dist.all_gather(list(shards), shard, group=group)
    return shards


def all_to_all(pieces: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Send each rank its piece of the contiguous (ranks, …), and return the pieces that have come from them."""
    arrived = torch.empty_like(pieces)
    dist.all_to_all_single(arrived, pieces, group=group)
    return arrived


def has_flat_collectives(group: dist.ProcessGroup | None) -> bool:
    """Whether the backend gathers into one tensor, and scatters one; NCCL copies a list into one first, and back."""
    return dist.get_backend(group) != "gloo"


#: Collectives that return new tensors, which torch.compile can have in a graph.
_functional: Any = torch.ops._c10d_functional


def _waiting(work: Any, x: Tensor) -> Callable[[], Tensor]:
    def finish() -> Tensor:
        work.wait()
        return x

    return finish


def _when_done(started: Tensor) -> Callable[[], Tensor]:
    return lambda: _functional.wait_tensor(started)


def _name(group: dist.ProcessGroup | None) -> str:
    assert group is not None
    return group.group_name
