"""The mesh of tensor, context, data and pipeline parallel ranks, and this rank's coordinates in it.

Ranks are numbered as in DeepSpeed's `PipeModelDataParallelTopology`: tensor innermost, then data, pipeline outermost.
Expert parallelism divides the data axis in two: consecutive ranks hold different experts of a layer. So does context
parallelism: consecutive ranks hold different positions of the same samples. The two divisions are independent: ranks
that divide experts have different tokens, of the same samples or of others. All ranks of the data axis have the same
weights, whose gradients are summed over all of it.
megatron-core's `parallel_state` numbers them alike, but makes 16 process groups for each rank. On GPUs, a group is an
NCCL communicator, which all ranks of the run take part in creating.
"""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from neoxargs.config.config import Config
from neoxargs.facts.context import ranks_with_other_heads
from neoxargs.facts.layout import stages

#: Timeout of collectives in minutes, so that they fail instead of hanging forever when another rank has failed.
TIMEOUT = int(os.environ.get("DEEPSPEED_TIMEOUT", "30"))


@dataclass(frozen=True)
class Axis:
    """One dimension of the mesh: the ranks whose coordinates differ from this rank's in that dimension only."""

    size: int = 1
    rank: int = 0
    group: dist.ProcessGroup | None = None
    """None for a single process without torch.distributed, which never communicates."""


ALONE = Axis()


@dataclass(frozen=True)
class Mesh:
    """This rank's coordinates. The default is a single process without torch.distributed."""

    tensor: Axis = ALONE
    data: Axis = ALONE
    pipe: Axis = ALONE
    expert: Axis = ALONE
    """The consecutive data parallel ranks that divide the experts of a layer among them."""
    expert_data: Axis = ALONE
    """The data parallel ranks that hold the same experts; without expert parallelism, all of them."""
    context: Axis = ALONE
    """The consecutive data parallel ranks that divide the positions of the same samples among them."""
    context_data: Axis = ALONE
    """The data parallel ranks that hold the same positions of other samples; `samples` for any mesh."""
    context_heads: Axis = ALONE
    """The consecutive context parallel ranks that exchange positions for heads within attention."""
    context_ring: Axis = ALONE
    """The context parallel ranks with the same heads within attention, around which keys and values go."""

    @property
    def samples(self) -> Axis:
        """The data parallel ranks that read different samples."""
        return self.context_data if self.context.size > 1 else self.data


def build_mesh(config: Config) -> Mesh:
    """Make the process groups and return this rank's coordinates. Every rank must call this.

    The size of the data axis is world size / (tensor parallel size x pipeline stages).
    """
    axes = {name: _axis(rows) for name, rows in groups_of_axes(config, dist.get_world_size()).items()}
    return Mesh(**{"expert_data": axes["data"]} | axes)


def groups_of_axes(config: Config, world: int) -> dict[str, Tensor]:
    """Return the axes in the order in which their groups are made: name -> the ranks of each group, one group a row."""
    parallel = config.parallel
    pipe, tensor = stages(parallel.pipe_parallel_size), parallel.model_parallel_size
    ranks = torch.arange(world).view(pipe, -1, tensor)  # (pipe, data, tensor)
    axes = {"tensor": ranks, "data": ranks.mT, "pipe": ranks.movedim(0, -1)}  # the last dimension runs over a group
    # Axes that divide the data axis in two: consecutive ranks, and those with the same place among them.
    sizes = {"expert": parallel.moe_expert_parallel_size, "context": parallel.context_parallel_size}
    for name, size in sizes.items():
        if size > 1:
            consecutive = ranks.mT.reshape(pipe, tensor, -1, size)
            axes |= {name: consecutive, f"{name}_data": consecutive.mT}
    if parallel.context_parallel_size > 1:
        heads = axes["context"].unflatten(-1, (-1, ranks_with_other_heads(config.get)))
        parts = {"context_heads": heads, "context_ring": heads.mT}
        axes |= {name: rows for name, rows in parts.items() if rows.shape[-1] > 1}
    return {name: ranks.flatten(0, -2) for name, ranks in axes.items()}


def destroy_groups() -> None:
    """Destroy all process groups but that of all ranks: those of meshes, and those that DeepSpeed has made.

    Call it when no engine is used any more. A group has threads, which would slow down what follows in this process.
    """
    gc.collect()  # engines, which refer to themselves, hold groups
    _groups.clear()
    for group in [group for group in distributed_c10d._world.pg_names if group is not dist.group.WORLD]:
        dist.destroy_process_group(group)


#: The ranks of all groups of an axis -> this rank's group. Axes of size 1 share the group of this rank alone.
_groups: dict[str, dist.ProcessGroup] = {}


def _axis(rows: Tensor) -> Axis:
    """Make a process group of each row of ranks, and return the axis of this rank's."""
    ranks = rows.tolist()
    if str(ranks) not in _groups:
        _groups[str(ranks)] = _own_group(ranks)
    group = _groups[str(ranks)]
    return Axis(dist.get_world_size(group), dist.get_rank(group), group)


def _own_group(ranks: list[list[int]]) -> dist.ProcessGroup:
    """Return this rank's group of those with these ranks. Collective."""
    timeout = timedelta(minutes=TIMEOUT)
    if _splits():
        # One call for all groups, which divides the communicator of all ranks as torch's DeviceMesh does. `new_group`
        # would do so once for each group, with all ranks, one after the other.
        own: dist.ProcessGroup | None = dist.split_group(split_ranks=ranks, timeout=timeout)
        assert own is not None
        return own
    if len(ranks[0]) == 1:  # DeepSpeed needs a group; nobody else takes part in making it
        alone: dist.ProcessGroup = dist.new_group([dist.get_rank()], timeout=timeout, use_local_synchronization=True)
        return alone
    # All ranks take part in making all groups, also those they are not in, and in the same order.
    make: Any = dist.new_subgroups_by_enumeration  # has no types
    group: dist.ProcessGroup = make(ranks, timeout=timeout)[0]
    return group


def _splits() -> bool:
    """Whether the communicator of all ranks can be divided: with NCCL, whose ranks have been given their device."""
    world: Any = dist.group.WORLD
    device = world.bound_device_id
    return device is not None and bool(world._get_backend(device).supports_splitting)


class Mpu:
    """The mesh with the methods that DeepSpeed's engine without a pipeline expects of `mpu`.

    (The pipeline engine makes its own groups.) Without a pipeline "model parallel" means "tensor parallel".
    """

    def __init__(self, mesh: Mesh) -> None:
        assert mesh.pipe.size == 1, "the pipeline engine provides its own mpu"
        axes = {"model": mesh.tensor, "tensor_model": mesh.tensor, "data": mesh.data, "pipeline_model": mesh.pipe}
        for name, axis in axes.items():
            for what, value in {"group": axis.group, "rank": axis.rank, "world_size": axis.size}.items():
                setattr(self, f"get_{name}_parallel_{what}", lambda value=value: value)
        # By their numbers in the run: the first of the tensor parallel ranks, and the data parallel ranks.
        self.get_tensor_model_parallel_src_rank = lambda: dist.get_process_group_ranks(mesh.tensor.group)[0]
        self.get_data_parallel_group_ranks = lambda: dist.get_process_group_ranks(mesh.data.group)
