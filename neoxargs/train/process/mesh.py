"""Who computes with whom: every rank's place among the tensor, data and pipeline parallel ranks.

megatron-core's `parallel_state` makes the groups. Its default order (tensor innermost, then data, pipe outermost)
numbers ranks as DeepSpeed's `PipeModelDataParallelTopology` does, so both libraries agree on every neighbour.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from neoxargs.registry.parallel import Parallel
from neoxargs.sizes.layout import stages

#: Minutes. A collective that waits longer than this fails instead of hanging for ever when another rank has died.
TIMEOUT = int(os.environ.get("DEEPSPEED_TIMEOUT", "30"))


@dataclass(frozen=True)
class Axis:
    """One direction of the mesh: the ranks that differ from this one only in that coordinate."""

    size: int = 1
    rank: int = 0
    group: dist.ProcessGroup | None = None
    """None stands for a process alone, which never communicates."""


ALONE = Axis()


@dataclass(frozen=True)
class Mesh:
    """This rank's coordinates. The default is a process of its own, without torch.distributed."""

    tensor: Axis = ALONE
    data: Axis = ALONE
    pipe: Axis = ALONE


def build_mesh(parallel: Parallel) -> Mesh:
    """Make the groups of all ranks (every rank calls this at the same time) and find this rank's place in them.

    The data axis takes the ranks that the model leaves over: world size / (tensor x pipe).
    """
    parallel_state = _parallel_state()
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=parallel.model_parallel_size,
        pipeline_model_parallel_size=stages(parallel.pipe_parallel_size),
        distributed_timeout_minutes=TIMEOUT,
        create_gloo_process_groups=False,  # a second set of groups for its own optimizer, which we do not use
    )
    return Mesh(
        tensor=_axis(parallel_state.get_tensor_model_parallel_group()),
        data=_axis(parallel_state.get_data_parallel_group()),
        pipe=_axis(parallel_state.get_pipeline_model_parallel_group()),
    )


def destroy() -> None:
    """Forget the groups, before `torch.distributed` itself is torn down."""
    _parallel_state().destroy_model_parallel()


def _parallel_state() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it recommends Transformer Engine and Apex, which we do not use
        from megatron.core import parallel_state
    return parallel_state


def _axis(group: dist.ProcessGroup) -> Axis:
    return Axis(dist.get_world_size(group), dist.get_rank(group), group)


class Mpu:
    """The mesh under the names that DeepSpeed's plain engine asks for (its pipeline engine makes its own groups).

    Without a pipeline "model parallel" and "tensor model parallel" mean the same ranks.
    """

    def __init__(self, mesh: Mesh) -> None:
        assert mesh.pipe.size == 1, "the pipeline engine brings its own mpu"
        self.mesh = mesh

    def get_model_parallel_group(self) -> dist.ProcessGroup | None:
        return self.mesh.tensor.group

    def get_model_parallel_rank(self) -> int:
        return self.mesh.tensor.rank

    def get_model_parallel_world_size(self) -> int:
        return self.mesh.tensor.size

    def get_tensor_model_parallel_group(self) -> dist.ProcessGroup | None:
        return self.mesh.tensor.group

    def get_tensor_model_parallel_rank(self) -> int:
        return self.mesh.tensor.rank

    def get_tensor_model_parallel_world_size(self) -> int:
        return self.mesh.tensor.size

    def get_tensor_model_parallel_src_rank(self) -> int:
        """The world rank that holds the first slice of what this rank holds a slice of."""
        return dist.get_process_group_ranks(self.mesh.tensor.group)[0]

    def get_data_parallel_group(self) -> dist.ProcessGroup | None:
        return self.mesh.data.group

    def get_data_parallel_group_ranks(self) -> list[int]:
        return dist.get_process_group_ranks(self.mesh.data.group)

    def get_data_parallel_rank(self) -> int:
        return self.mesh.data.rank

    def get_data_parallel_world_size(self) -> int:
        return self.mesh.data.size

    def get_pipeline_model_parallel_group(self) -> dist.ProcessGroup | None:
        return self.mesh.pipe.group

    def get_pipeline_model_parallel_rank(self) -> int:
        return self.mesh.pipe.rank

    def get_pipeline_model_parallel_world_size(self) -> int:
        return self.mesh.pipe.size
