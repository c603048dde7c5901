"""Activation recomputation, which trades computation for memory."""

from __future__ import annotations

from typing import Literal

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count


class Recompute(Group, origin="Meg", effect="memory"):
    """Activation checkpointing: keep few activations, and recompute the others in the backward pass."""

    checkpoint_activations: bool | Literal["selective"] = param(False)
    """Keeps only the inputs of every `checkpoint_num_layers` layers and recomputes the rest in the backward pass: about
    a third more computation for far less memory. `selective` keeps the outputs of matrix multiplications and of
    attention and recomputes norms and activation functions: a few per cent more time, for 50 to 65% of the memory."""

    checkpoint_num_layers: Count = param(1, megatron="recompute-num-layers")
    """With `checkpoint_activations`, only the input of every N-th layer is stored, where N is this number. A larger N
    stores fewer inputs, but recomputes more layers at a time; unless the model has many layers, this needs more memory
    in total."""

    deepspeed_activation_checkpointing: bool = param(False)
    """Recomputes with DeepSpeed's checkpointing function instead of PyTorch's; the results are the same. With
    `partition_activations`, `contiguous_checkpointing` or `checkpoint_in_cpu`, PyTorch's function is always used.
    GPT-NeoX's default became true in April 2021."""

    partition_activations: bool = param(False, megatron="distribute-saved-activations")
    """Partitions stored activations across the tensor parallel ranks, which gather them again in the backward pass."""

    distribute_checkpointed_activations: bool = param(
        False, megatron="distribute-saved-activations", replaced_by={True: {"partition_activations": True}, False: {}}
    )
    """Retired in April 2021: use `partition_activations`."""

    contiguous_checkpointing: bool = param(False, aliases="contigious_checkpointing")
    """Copies stored activations into one buffer allocated in advance, which avoids memory fragmentation. Needs
    `partition_activations`."""

    checkpoint_in_cpu: bool = param(False)
    """Moves stored activations to host memory until the backward pass; on a CPU it only copies them."""

    synchronize_each_layer: bool = param(False)
    """Waits for the device before and after each pass of a recomputed part; slower, and only useful for timing."""

    profile_backward: bool = param(False)
    """Prints how long the forward and backward passes of each recomputed part take, for every micro batch and pipeline
    stage. Waits for the device like `synchronize_each_layer`."""
