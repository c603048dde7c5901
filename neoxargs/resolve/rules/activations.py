"""Activation checkpointing: Megatron's flags and DeepSpeed's section `activation_checkpointing` are the same setting.

`checkpoint_activations` has no counterpart in that section: the model decides which layers are recomputed, the
section decides where their inputs are stored until the backward pass.
"""

from __future__ import annotations

from neoxargs.resolve.rules.rule import Findings, check, derive, refuse
from neoxargs.resolve.rules.synonyms import synonyms

synonyms("partition_activations", "activation_checkpointing.partition_activations")
synonyms("contiguous_checkpointing", "activation_checkpointing.contiguous_memory_optimization")
synonyms("checkpoint_in_cpu", "activation_checkpointing.cpu_checkpointing")
synonyms("synchronize_each_layer", "activation_checkpointing.synchronize_checkpoint_boundary")
synonyms("profile_backward", "activation_checkpointing.profile")


@derive
def activation_checkpointing__number_checkpoints(
    checkpoint_activations: bool | str, contiguous_checkpointing: bool, num_layers: int, checkpoint_num_layers: int
) -> int | None:
    """num_layers / checkpoint_num_layers, the number of chunks that the contiguous buffer is allocated for"""
    has_buffer = checkpoint_activations is True and contiguous_checkpointing
    return -(-num_layers // checkpoint_num_layers) if has_buffer else None  # the last chunk may have fewer layers


@check
def contiguous_checkpointing_needs_partition_activations(
    contiguous_checkpointing: bool, partition_activations: bool
) -> Findings:
    """DeepSpeed allocates a contiguous buffer only for activations that are partitioned across tensor parallel ranks.
    Without partition_activations, an assertion in DeepSpeed stops every rank when the engine is configured.

        checkpoint_activations: true
        contiguous_checkpointing: true
    """
    if contiguous_checkpointing and not partition_activations:
        yield refuse("contiguous_checkpointing needs partition_activations", "set partition_activations to true")


@check
def checkpoint_num_layers_at_most_num_layers(
    checkpoint_activations: bool | str, checkpoint_num_layers: int, num_layers: int
) -> Findings:
    """checkpoint_num_layers is the number of layers that are recomputed together. If the model has fewer layers, all of
    them form one chunk: the backward pass holds every activation at once, and no memory is saved.

        checkpoint_activations: true
        checkpoint_num_layers: 5
    """
    if checkpoint_activations is True and checkpoint_num_layers > num_layers:
        yield refuse(
            f"checkpoint_num_layers ({checkpoint_num_layers}) must be at most num_layers ({num_layers})",
            f"set checkpoint_num_layers to {num_layers} or less",
            about=["checkpoint_num_layers", "num_layers"],
        )


@check
def selective_recompute_excludes_zero_3(
    checkpoint_activations: bool | str, zero_optimization__stage: object
) -> Findings:
    """ZeRO stage 3 gathers the weights of a layer for its forward and for its backward pass, and frees them in between.
    The hooks with which selective recomputation replaces stored activations would keep the gathered weights of all
    layers until the backward pass.

        checkpoint_activations: selective
        zero_optimization: {stage: 3}
    """
    if checkpoint_activations == "selective" and zero_optimization__stage == 3:
        yield refuse(
            "checkpoint_activations (selective) cannot be combined with ZeRO stage 3",
            "set checkpoint_activations to true or false, or zero_optimization.stage to 2 or less",
        )


@check
def compile_layers_excludes_zero_3(compile_layers: bool, zero_optimization__stage: object) -> Findings:
    """ZeRO stage 3 gathers and frees weights in hooks around every module inside a layer. torch.compile breaks a layer
    at each of these hooks, and would compile again whenever the shape of a weight changes.

        compile_layers: true
        zero_optimization: {stage: 3}
    """
    if compile_layers and zero_optimization__stage == 3:
        yield refuse(
            "compile_layers cannot be combined with ZeRO stage 3",
            "set compile_layers to false, or zero_optimization.stage to 2 or less",
        )


@check
def compile_layers_excludes_selective_recompute(compile_layers: bool, checkpoint_activations: bool | str) -> Findings:
    """torch.compile decides by itself which cheap activations of a layer are recomputed in the backward pass. The
    hooks of selective recomputation would break the compiled layer at every activation.

        compile_layers: true
        checkpoint_activations: selective
    """
    if compile_layers and checkpoint_activations == "selective":
        yield refuse(
            "compile_layers and checkpoint_activations (selective) cannot be combined",
            "remove checkpoint_activations (compiled layers recompute cheap activations anyway), or remove "
            "compile_layers",
        )
