"""Parallelism in DeepSpeed's JSON: sections `pipeline`, `tensor_parallel` and `expert_parallel`.

train.py has its own tensor parallel layers (`model_parallel_size`); the last two sections are for Hugging Face models
in a user script.
"""

from __future__ import annotations

from typing import Literal

from neoxargs.registry import data_file
from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count, Natural


class Pipeline(Group, origin="DSC", effect="engine", section="pipeline"):
    """DeepSpeed's own settings of pipeline parallelism; the layout comes from `pipe_parallel_size`."""

    stages: Count | Literal["auto"] = param(
        "auto", effect="none", no_effect_reason="DeepSpeed does not read it; set pipe_parallel_size instead"
    )
    """Not used: DeepSpeed stores this value but does not read it. Set `pipe_parallel_size` instead."""

    partition: str = param(
        "best", effect="none", no_effect_reason="DeepSpeed does not read it; set pipe_partition_method instead"
    )
    """Not used: DeepSpeed stores this value but does not read it. Set `pipe_partition_method` instead."""

    seed_layers: bool = param(False, effect="none", no_effect_reason="DeepSpeed does not read it")
    """Not used: DeepSpeed stores this value but does not read it."""

    activation_checkpoint_interval: Natural = param(0, effect="memory")
    """Number of layers that are recomputed together; 0 means that `checkpoint_num_layers` sets it."""

    pipe_partitioned: bool = param(True)
    """Partition activations across the tensor parallel ranks when they are sent to the next stage, and gather them
    there."""

    grad_partitioned: bool = param(True)
    """Partition gradients across the tensor parallel ranks when they are sent to the previous stage, and gather them
    there."""

    use_reentrant: bool = param(True, effect="memory")
    """Recompute with torch's reentrant checkpointing; false selects the non-reentrant variant, which works even
    if no input needs a gradient."""


data_file.declare(__name__, "tensor_parallel", "tensor_parallel.tp", "expert_parallel")
