"""The learning rate as a function of the iteration, as GPT-NeoX and Megatron define it.

Iteration n, counted from 0, runs with `rate(n)`. GPT-NeoX's warm-up started at a rate of 0, with which the first update
changes no weight, until May 2026 (`warmup_from_zero`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from neoxargs.base.record import Record, replace
from neoxargs.config.config import Config
from neoxargs.facts import deepspeed_schedule, lr_phases
from neoxargs.facts.batch_sizes import BatchSizes
from neoxargs.facts.lengths import Sizes

#: Returns the value of a parameter in a run: `Config.get`.
Get = Callable[[str], Any]
#: The parameters that define the curve of a resumed run; `warmup_from_zero` concerns the first iteration only.
PARAMETERS = (
    "lr_decay_style", "lr", "min_lr", "warmup", "lr_decay_iters", "lr_wsd_decay_iters", "lr_wsd_decay_style",
    "lr_schedule",
)  # fmt: skip
#: Those that also define it if it counts samples.
OF_SAMPLES = ("lr_decay_samples", "rampup_batch_size", "batch_size_schedule", "train_batch_size")


#: The style of a schedule that `lr_schedule` lists.
PHASES = "phases"


class LearningRateCurve(Record):
    """Warm-up to `lr`, then decay until `decay_iters`.

    The formulas are those of GPT-NeoX (`megatron/learning_rates.py`, 2024); the cosine is Loshchilov and Hutter's
    (https://arxiv.org/abs/1608.03983). After `decay_iters` the cosine stays at `min_lr`, whereas GPT-NeoX's increases
    again. WSD and inverse-square-root are Megatron-LM's (`megatron/core/optimizer_param_scheduler.py`), and stay at
    `min_lr` after `decay_iters`.
    """

    style: str
    lr: float
    min_lr: float
    warmup_iters: float
    decay_iters: int
    from_zero: bool = True
    """Whether the warm-up starts at a rate of 0; if not, the first iteration has the same rate as the second."""
    wsd_iters: int = 0
    """Iterations of the decay of WSD, which ends at `decay_iters`."""
    wsd_style: str = "exponential"
    begins: Sequence[Sequence[int]] = []
    """Of the batch sizes (`BatchSizes.begins`), if the lengths count samples; otherwise they count iterations."""
    phases: Sequence[Sequence[Any]] = []  # lists, as in the JSON of a checkpoint
    """Of `lr_schedule`, with which the style is PHASES: style, last iteration, first and last rate of each."""

    @classmethod
    def of(cls, get: Get) -> LearningRateCurve:
        """Return the curve of a run's parameters. Raises Mistakes."""
        if listed := get("lr_schedule"):
            found = [list(phase) for phase in lr_phases.phases(listed, get("lr"), Sizes.of(get))]
            return cls(PHASES, get("lr"), 0.0, 0.0, get("train_iters"), phases=found)
        sizes = BatchSizes.of(get) if counts_samples(get) else None
        decay = _decay_samples(get, sizes) if sizes else get("lr_decay_iters")
        curve = cls(
            get("lr_decay_style"), get("lr"), get("min_lr"), get("warmup") * decay, decay, get("warmup_from_zero")
        )
        changes: dict[str, Any] = {"begins": sizes.begins} if sizes else {}
        if curve.style == "WSD":
            # The batches before the end of the run have their full size.
            unit = sizes.last if sizes else 1
            changes |= {"wsd_iters": unit * (get("lr_wsd_decay_iters") or 0), "wsd_style": get("lr_wsd_decay_style")}
        return replace(curve, **changes)

    @cached_property
    def sizes(self) -> BatchSizes:
        return BatchSizes([(begin, size) for begin, size in self.begins])

    def rate(self, iteration: int) -> float:
        """Return the learning rate of an iteration, counted from 0."""
        if self.style == PHASES:
            return lr_phases.rate([lr_phases.Phase(*phase) for phase in self.phases], iteration)
        if self.begins:
            return self._rate(self.sizes.samples_after(iteration), first=self.sizes.samples_after(1))
        return self._rate(iteration)

    def _rate(self, iteration: int, first: int = 1) -> float:
        """Return the rate after so many iterations or samples. first: of the first iteration."""
        if iteration <= self.warmup_iters and self.warmup_iters > 0:
            # GPT-NeoX exceeds lr in the first iteration of a warm-up that is shorter than one iteration.
            return self.lr * min(1.0, max(iteration, 0 if self.from_zero else first) / self.warmup_iters)
        if self.style in MEGATRON:
            decayed = MEGATRON[self.style](self, iteration) if iteration <= self.decay_iters else self.min_lr
            return max(decayed, self.min_lr)
        # Not 0, for a run that consists of its warm-up.
        span = max(self.decay_iters - self.warmup_iters, 1e-9)
        return max(_DECAYS[self.style](self, (iteration - self.warmup_iters) / span), self.min_lr)


def counts_samples(get: Get) -> bool:
    """Return whether the schedule of a run counts samples, as in Megatron-LM, and that makes a difference."""
    return bool(get("train_samples") and BatchSizes.of(get).changes)


def _decay_samples(get: Get, sizes: BatchSizes) -> int:
    if get("lr_decay_samples"):
        return int(get("lr_decay_samples"))
    if get("lr_decay_fraction") is not None:
        return int(get("lr_decay_fraction") * get("train_samples"))
    decay_iters = get("lr_decay_iters")
    return int(get("train_samples") if decay_iters == get("train_iters") else sizes.samples_after(decay_iters))


def _cosine(curve: LearningRateCurve, progress: float) -> float:
    return curve.min_lr + (curve.lr - curve.min_lr) / 2 * (math.cos(math.pi * min(progress, 1)) + 1)


#: 0.693 = ln 2, as in GPT-NeoX: the exponential style halves the rate over the decay.
_DECAYS: dict[str, Callable[[LearningRateCurve, float], float]] = {
    "constant": lambda curve, progress: curve.lr,
    "linear": lambda curve, progress: curve.lr * (1 - progress),
    "cosine": _cosine,
    "exponential": lambda curve, progress: curve.lr * math.exp(-0.693 * progress),
}


def _wsd(curve: LearningRateCurve, iteration: int) -> float:
    decayed = max(0.0, iteration - (curve.decay_iters - curve.wsd_iters)) / max(curve.wsd_iters, 1)
    return curve.min_lr + (curve.lr - curve.min_lr) * lr_phases.LEFT[curve.wsd_style](decayed)


#: Style that only Megatron-LM has -> the rate of an iteration after the warm-up.
MEGATRON: dict[str, Callable[[LearningRateCurve, int], float]] = {
    "WSD": _wsd,
    "inverse-square-root": lambda curve, iteration: curve.lr * math.sqrt(curve.warmup_iters / max(iteration, 1)),
}


def rates(config: Config) -> Callable[[int], float]:
    """Return the learning rate of an iteration, counted from 0, whichever schedule the run has."""
    return deepspeed_schedule.curve(config) if config.scheduler.type else LearningRateCurve.of(config.get).rate


def differing(ours: Get, theirs: Get) -> list[str]:
    """Return the parameters in which the curves of two runs differ.

    `lr_decay_iters` is not among them if both runs derive it from `train_iters` in the same way.
    """
    count = counts_samples(ours), counts_samples(theirs)
    names = [name for name in (*PARAMETERS, *(OF_SAMPLES if any(count) else ())) if ours(name) != theirs(name)]
    names += ["train_samples"] * (count[0] != count[1])
    follow = _follows_train_iters(ours) and _follows_train_iters(theirs)
    same_share = ours("lr_decay_fraction") == theirs("lr_decay_fraction")
    return [name for name in names if name != "lr_decay_iters"] if follow and same_share else names


def _follows_train_iters(get: Get) -> bool:
    return get("lr_decay_fraction") is not None or get("lr_decay_iters") == get("train_iters")
