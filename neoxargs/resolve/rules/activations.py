"""Activation checkpointing: Megatron's flags and DeepSpeed's section `activation_checkpointing` are one setting.

`checkpoint_activations` itself has no counterpart there: the model decides what is recomputed, the section says
where what is kept lies meanwhile.
"""

from __future__ import annotations

from neoxargs.resolve.rules.rule import Finding, check, derive, refuse
from neoxargs.resolve.rules.synonyms import same

partition = same("partition_activations", "activation_checkpointing.partition_activations")
contiguous = same("contiguous_checkpointing", "activation_checkpointing.contiguous_memory_optimization")
in_cpu = same("checkpoint_in_cpu", "activation_checkpointing.cpu_checkpointing")
synchronize = same("synchronize_each_layer", "activation_checkpointing.synchronize_checkpoint_boundary")
profile = same("profile_backward", "activation_checkpointing.profile")


@derive
def activation_checkpointing__number_checkpoints(
    checkpoint_activations: bool, contiguous_checkpointing: bool, num_layers: int, checkpoint_num_layers: int
) -> int | None:
    """num_layers / checkpoint_num_layers, which a contiguous buffer must know beforehand"""
    if not (checkpoint_activations and contiguous_checkpointing):
        return None
    return -(-num_layers // checkpoint_num_layers)


@check
def contiguous_checkpointing_needs_partition_activations(
    contiguous_checkpointing: bool, partition_activations: bool
) -> Finding | None:
    """DeepSpeed lays out one contiguous buffer only for activations that are partitioned between tensor parallel
    ranks. Without the partition its assertion stops every rank when the engine is configured.

        checkpoint_activations: true
        contiguous_checkpointing: true
    """
    if not contiguous_checkpointing or partition_activations:
        return None
    return refuse("contiguous_checkpointing needs partition_activations", "write partition_activations: true as well")


@check
def checkpoint_num_layers_at_most_num_layers(
    checkpoint_activations: bool, checkpoint_num_layers: int, num_layers: int
) -> Finding | None:
    """checkpoint_num_layers says how many layers are recomputed at a time. With more than the model has, all of them
    are one chunk: the backward pass holds every activation at once, and the memory that was to be saved is needed.

        checkpoint_activations: true
        checkpoint_num_layers: 5
    """
    if not checkpoint_activations or checkpoint_num_layers <= num_layers:
        return None
    return refuse(
        f"checkpoint_num_layers ({checkpoint_num_layers}) must be at most num_layers ({num_layers})",
        about=["checkpoint_num_layers", "num_layers"],
    )
