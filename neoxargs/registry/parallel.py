"""How the ranks divide the model between them."""

from __future__ import annotations

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count, Natural


class Parallel(Group, origin="Meg"):
    """Tensor, pipeline and sequence parallelism; the remaining ranks are data parallel."""

    pipe_parallel_size: Natural = param(0, megatron="pipeline-model-parallel-size")
    model_parallel_size: Count = param(1, megatron="tensor-model-parallel-size")
    pipe_partition_method: str = param("type:transformer|mlp", origin="NeoX")
    sequence_parallel: bool = param(False, megatron="sequence-parallel")
    world_size: Count = param(derived=True, origin="NeoX")
    is_pipe_parallel: bool = param(derived=True, origin="NeoX")
    global_num_gpus: Count = param(derived=True, origin="NeoX")
