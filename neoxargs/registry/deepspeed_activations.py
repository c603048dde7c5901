"""Activation recomputation in DeepSpeed's JSON: section `activation_checkpointing`."""

from __future__ import annotations

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count


class ActivationCheckpointing(Group, origin="DSC", effect="memory", section="activation_checkpointing"):
    """How DeepSpeed's `checkpoint` function for recomputation stores activations. `checkpoint_activations` turns
    recomputation on."""

    partition_activations: bool = param(False)
    """Partition each stored activation across the tensor parallel ranks, at the cost of gathering it in the backward
    pass."""

    number_checkpoints: Count | None = param(None)
    """Number of activation checkpoints in a forward pass; required by `contiguous_memory_optimization`."""

    contiguous_memory_optimization: bool = param(False)
    """Copy stored activations into one buffer, which avoids memory fragmentation. Needs `partition_activations`."""

    cpu_checkpointing: bool = param(False)
    """Keep the partitioned activations in host memory. Needs `partition_activations`."""

    synchronize_checkpoint_boundary: bool = param(False)
    """Wait for the GPU at every checkpoint; only useful for timing."""

    profile: bool = param(False)
    """Log the forward and backward times of each checkpointed function."""
