"""Batch size: `train_batch_size` = micro batch x gradient accumulation steps x data parallel ranks."""

from __future__ import annotations

from typing import Any

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count


class Batch(Group, origin="DSC", effect="engine"):
    """Batch sizes; any two of the three sizes determine the third."""

    train_batch_size: Count = param(derived=True, megatron="global-batch-size")
    """Number of samples per optimizer step, on all ranks together. It equals `train_micro_batch_size_per_gpu` x
    `gradient_accumulation_steps` x data parallel size; if not set, it is computed from these."""

    train_micro_batch_size_per_gpu: Count = param(derived=True, megatron="micro-batch-size")
    """Number of samples that each data parallel rank processes in one forward pass; activation memory grows with it. If
    not set, it is `train_batch_size` divided by the accumulation steps and the data parallel size."""

    gradient_accumulation_steps: Count = param(derived=True)
    """Number of micro batches whose gradients are summed before an optimizer step. With pipeline parallelism, these
    micro batches pass through the stages one after another; with several times as many micro batches as stages, the
    stages are rarely idle. If not set, it is computed from the other two sizes, or is 1."""

    rampup_batch_size: list[Count] | None = param(None, ours=True, origin="Meg", megatron="rampup-batch-size")
    """Batch size ramp of Megatron-LM, as `[start, increment, samples]`: the first batches have `start` samples, and
    while the run consumes the first `samples` samples, the batch grows in equal intervals by `increment`, up to
    `train_batch_size`. Micro batch size and data parallel size stay, so `start` and `increment` must be multiples of
    their product."""

    batch_size_schedule: list[dict[str, Any]] | None = param(None, ours=True, origin="Meg")
    """The sizes of the batch as a list of phases `{until, size}`, in place of `rampup_batch_size`: each batch is larger
    than those of the phase before it, up to `train_batch_size`, the size of the last phase, which has no `until`.
    `until` counts from the beginning of the run: iterations (`2000`), `20B tokens` or `5M samples`. Micro batch size
    and data parallel size stay, so sizes must be multiples of their product."""

    batch_size: Count = param(derived=True, origin="Meg")
    """Megatron's name for `train_micro_batch_size_per_gpu`. Set only one of the two."""

    gas: Count = param(derived=True, origin="NeoX")
    """Old abbreviation of `gradient_accumulation_steps`; new files should use the full name. Both have the same
    value."""
