"""The mesh of tensor, data and pipeline parallel ranks, and this rank's coordinates in it.

megatron-core's `parallel_state` makes the process groups. Its default order (tensor innermost, then data, pipeline
outermost) numbers ranks like DeepSpeed's `PipeModelDataParallelTopology`, so both libraries use the same groups.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from neoxargs.registry.parallel import Parallel
from neoxargs.sizes.layout import stages

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


def build_mesh(parallel: Parallel) -> Mesh:
    """Make the process groups and return this rank's coordinates. Every rank must call this.

    The data parallel size is world size / (tensor parallel size x pipeline stages).
    """
    parallel_state = _parallel_state()
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=parallel.model_parallel_size,
        pipeline_model_parallel_size=stages(parallel.pipe_parallel_size),
        distributed_timeout_minutes=TIMEOUT,
        create_gloo_process_groups=False,  # only megatron-core's optimizer needs them
    )
    return Mesh(
        tensor=_axis(parallel_state.get_tensor_model_parallel_group()),
        data=_axis(parallel_state.get_data_parallel_group()),
        pipe=_axis(parallel_state.get_pipeline_model_parallel_group()),
    )


def destroy_groups() -> None:
    """Destroy the process groups, before `torch.distributed` itself is shut down."""
    _parallel_state().destroy_model_parallel()


def _parallel_state() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it recommends Transformer Engine and Apex, which are not used
        from megatron.core import parallel_state
    return parallel_state


def _axis(group: dist.ProcessGroup) -> Axis:
    return Axis(dist.get_world_size(group), dist.get_rank(group), group)


class Mpu:
    """The mesh with the interface that DeepSpeed's engine without a pipeline expects of `mpu`.

    (The pipeline engine makes its own groups.) Without a pipeline "model parallel" means "tensor parallel".
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
        """Return the global rank of the first rank of this rank's tensor parallel group."""
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
