"""Batch size: `train_batch_size` = micro batch x gradient accumulation steps x data parallel ranks."""

from __future__ import annotations

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count


class Batch(Group, origin="DSC", effect="engine"):
    """Batch sizes; any two of the three sizes determine the third."""

    train_batch_size: Count = param(derived=True, megatron="global-batch-size")
    """Samples that one optimizer step averages over, on all ranks together. It equals `train_micro_batch_size_per_gpu`
    x `gradient_accumulation_steps` x data parallel size; left out, it is computed from those."""

    train_micro_batch_size_per_gpu: Count = param(derived=True, megatron="micro-batch-size")
    """Samples per data parallel rank and forward pass; memory for activations grows with it. Left out, it is
    `train_batch_size` divided by the accumulation steps and the data parallel size."""

    gradient_accumulation_steps: Count = param(derived=True)
    """Micro batches whose gradients are summed before an optimizer step. With pipeline parallelism, these micro batches
    pass through the stages one after another; with several times as many micro batches as stages, the stages are rarely
    idle. Left out, it is computed from the two other sizes, or is 1."""

    batch_size: Count = param(derived=True, origin="Meg")
    """Megatron's name for `train_micro_batch_size_per_gpu`: samples per data parallel rank and forward pass. Set only
    one of the two."""

    gas: Count = param(derived=True, origin="NeoX")
    """Old abbreviation of `gradient_accumulation_steps`; new files should use the full name. Both have the same
    value."""
