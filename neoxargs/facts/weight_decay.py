"""The weight decay of each iteration, as in Megatron-LM (`megatron/core/optimizer_param_scheduler.py`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from neoxargs.base.record import Record
from neoxargs.facts.batch_sizes import BatchSizes
from neoxargs.facts.lr_schedule import counts_samples


class WeightDecay(Record):
    """The weight decay over a run: `start` in its first iteration, `end` after its last."""

    style: str
    start: float
    end: float
    length: int
    """Of the run, in iterations or, with `sizes`, in samples."""
    usual: float
    """`weight_decay`, with which the optimizer is built."""
    sizes: BatchSizes | None = None
    """Of a ramp, along which samples are counted, as the learning rate's schedule does."""

    @classmethod
    def of(cls, get: Callable[[str], Any]) -> WeightDecay:
        """Return the weight decay of a run's parameters."""
        style, ends = get("weight_decay_incr_style"), (get("start_weight_decay"), get("end_weight_decay"))
        if style == "constant" or None in ends:
            ends = (get("weight_decay"),) * 2
        if counts_samples(get):
            return cls(style, *ends, get("train_samples"), get("weight_decay"), BatchSizes.of(get))
        return cls(style, *ends, get("train_iters"), get("weight_decay"))

    @property
    def changes(self) -> bool:
        return self.start != self.end

    @property
    def is_usual(self) -> bool:
        """Whether it is that of the optimizer throughout."""
        return self.start == self.end == self.usual

    def after(self, iteration: int) -> float:
        """Return the weight decay of the update that follows after so many iterations."""
        share = min(1.0, (self.sizes.samples_after(iteration) if self.sizes else iteration) / self.length)
        if self.style == "cosine":
            share = 0.5 * (math.cos(math.pi * (1 - share)) + 1.0)
        return self.start + share * (self.end - self.start)
