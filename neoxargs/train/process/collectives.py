"""Communication between ranks: through shared memory where a channel is open, otherwise torch.distributed's.

Channels are open between the ranks of an axis of the mesh, and between all ranks, where these compute on the CPUs of
one machine. A group of other code with the same ranks uses the same channel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from neoxargs.train.process.shared_memory import DTYPES, OPERATIONS, Channel, open_channel

#: Ranks of the run -> the channel between them, in the order in which the channels were opened.
_channels: dict[tuple[int, ...], Channel] = {}


def open_channels(groups: Iterable[dist.ProcessGroup | None], timeout: float) -> None:
    """Open channels between the ranks of these groups if the run communicates over gloo. Collective."""
    # Ranks that compute on GPUs use NCCL; over gloo, `open_channel` decides by the machines of the ranks.
    for group in groups if dist.get_backend() == "gloo" else ():
        if _ranks(group) not in _channels:
            channel = open_channel(group, timeout)
            if channel is not None:
                _channels[_ranks(group)] = channel


def has_channels() -> bool:
    """Whether any ranks communicate through shared memory."""
    return bool(_channels)


def close_channels() -> None:
    while _channels:
        _channels.popitem()[1].close()


def all_reduce(
    x: Tensor, operation: Any = dist.ReduceOp.SUM, group: dist.ProcessGroup | None = None, async_op: bool = False
) -> Any:
    """Reduce the contiguous x over the ranks in place, like `torch.distributed.all_reduce`."""
    channel = _channel(x, group)
    if channel is None or operation not in OPERATIONS:
        return dist.all_reduce(x, operation, group, async_op)
    reduction = channel.start_all_reduce(x, operation)
    if async_op:
        # `Reduction` has the two methods of torch's `Work` that DeepSpeed and deepy call: `wait` and `is_completed`.
        return reduction
    return reduction.wait()


def broadcast(x: Tensor, source: int, group: dist.ProcessGroup | None = None, async_op: bool = False) -> Any:
    """Copy x of a rank of the run to every rank of the group, like `torch.distributed.broadcast`."""
    channel = _channel(x, group)
    # The shared memory has no asynchronous broadcast.
    if channel is None or async_op:
        return dist.broadcast(x, source, group, async_op)
    return channel.broadcast(x, _ranks(group).index(source))


def reduce_scatter(own: Tensor, x: Tensor, group: dist.ProcessGroup | None = None, async_op: bool = False) -> Any:
    """Sum the flat x over the ranks. own: this rank's view of x, one of as many equal parts as there are ranks.

    The rest of x is undefined afterwards.
    """
    assert own.data_ptr() == x.data_ptr() + dist.get_rank(group) * own.numel() * x.element_size()
    channel = _channel(x, group)
    if channel is None:
        # The newer name of the same function, in torch from 2.13.
        scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        return scatter(own, x, group=group, async_op=async_op)
    reduction = channel.start_all_reduce(x)
    return reduction if async_op else reduction.wait()


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
    return _waiting(all_reduce(x, group=group, async_op=True), x)


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


def _ranks(group: dist.ProcessGroup | None) -> tuple[int, ...]:
    return tuple(dist.get_process_group_ranks(group))


def _channel(x: Tensor, group: dist.ProcessGroup | None) -> Channel | None:
    return _channels.get(_ranks(group)) if _channels and x.device.type == "cpu" and x.dtype in DTYPES else None
