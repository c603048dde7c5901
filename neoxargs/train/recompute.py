"""Activation checkpointing: torch's own, unless something is asked for that only DeepSpeed's can do.

DeepSpeed's moves activations with CUDA streams, so on a CPU it is torch's for all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.checkpoint import checkpoint

from neoxargs.registry.activations import Recompute
from neoxargs.resolve.config import Config
from neoxargs.train.mesh import Mesh, Mpu
from neoxargs.train.setup import on_gpu


def interval(options: Recompute) -> int:
    """Keep activations only between runs of so many layers; 0 keeps them all."""
    return options.checkpoint_num_layers if options.checkpoint_activations else 0


def by_deepspeed(options: Recompute) -> bool:
    return on_gpu() and (
        options.deepspeed_activation_checkpointing
        or options.partition_activations
        or options.contiguous_checkpointing
        or options.checkpoint_in_cpu
        or options.synchronize_each_layer
        or options.profile_backward
    )


def function(options: Recompute) -> Callable[..., Any]:
    """Called with a function and its inputs; returns its outputs."""
    if by_deepspeed(options):
        import deepspeed

        return deepspeed.checkpointing.checkpoint  # type: ignore[no-any-return]
    return lambda run, *inputs: checkpoint(run, *inputs, use_reentrant=False)


def configure(config: Config, json: dict[str, Any], mesh: Mesh) -> None:
    """DeepSpeed's checkpointing keeps its settings in its module."""
    options = config.recompute
    if not (options.checkpoint_activations and by_deepspeed(options)):
        return
    import deepspeed

    deepspeed.checkpointing.configure(
        Mpu(Mesh(tensor=mesh.tensor, data=mesh.data)),
        deepspeed_config=json,
        partition_activations=options.partition_activations or None,
        contiguous_checkpointing=options.contiguous_checkpointing or None,
        num_checkpoints=config.shape.num_layers,
        checkpoint_in_cpu=options.checkpoint_in_cpu or None,
        synchronize=options.synchronize_each_layer or None,
        profile=options.profile_backward or None,
    )
