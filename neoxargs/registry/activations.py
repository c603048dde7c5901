"""Trading computation for activation memory."""

from __future__ import annotations

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count


class Recompute(Group, origin="Meg"):
    """Activation checkpointing: keep few activations, compute the others again in the backward pass."""

    checkpoint_activations: bool = param(False)
    checkpoint_num_layers: Count = param(1, megatron="recompute-num-layers")
    deepspeed_activation_checkpointing: bool = param(False)
    partition_activations: bool = param(False, megatron="distribute-saved-activations")
    distribute_checkpointed_activations: bool = param(
        False,
        megatron="distribute-saved-activations",
        becomes={True: {"partition_activations": True}, False: {}},
    )
    contiguous_checkpointing: bool = param(False, renamed_from="contigious_checkpointing")
    checkpoint_in_cpu: bool = param(False)
    synchronize_each_layer: bool = param(False)
    profile_backward: bool = param(False)
