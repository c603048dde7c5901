"""The learning rate over a run: how long it falls, and which of two schedules is meant."""

from __future__ import annotations

from collections.abc import Collection

from neoxargs.resolve.rules.optimizer import is_onebit
from neoxargs.resolve.rules.rule import Contradiction, Refusal, check, derive

#: DeepSpeed's schedules that rise from a lowest to a highest rate, and those that end after a number of steps.
RISING = ("WarmupLR", "WarmupDecayLR")
ENDING = ("WarmupDecayLR", "WarmupCosineLR")
WARMING = (*RISING, "WarmupCosineLR")


@derive
def train_iters(train_iters: int | None, train_epochs: int | None) -> int | None:
    """train.py counts them from train_epochs, once it knows the data"""
    if train_iters is None and train_epochs is None:
        raise Contradiction("nothing says how long to train: train_iters is missing", "write train_iters: 1000")
    if train_iters is not None and train_epochs is not None:
        raise Contradiction(
            f"train_iters ({train_iters}) and train_epochs ({train_epochs}) both say how long to train",
            "keep one of them",
        )
    return train_iters


@derive
def lr_decay_iters(lr_decay_iters: int | None, lr_decay_fraction: float | None, train_iters: int) -> int:
    """the learning rate falls until the end of training, or for lr_decay_fraction of it"""
    if lr_decay_fraction is None:
        return lr_decay_iters or train_iters
    counted = int(train_iters * lr_decay_fraction)
    if lr_decay_iters not in (None, counted):
        raise Contradiction(
            f"lr_decay_iters ({lr_decay_iters}) and lr_decay_fraction ({lr_decay_fraction}) "
            f"of train_iters ({train_iters}) = {counted} disagree",
            "keep one of them",
        )
    if counted == 0:
        raise Contradiction(
            f"lr_decay_fraction ({lr_decay_fraction}) of train_iters ({train_iters}) is less than one iteration",
            "leave lr_decay_fraction out to decay until the end",
        )
    return counted


@derive
def scheduler__type(optimizer__type: str, written: Collection[str]) -> str | None:
    """1-bit optimizers bring the schedule that GPT-NeoX gives them, unless lr_decay_style asks for another"""
    return "WarmupDecayLR" if is_onebit(optimizer__type) and "lr_decay_style" not in written else None


@derive
def scheduler__params__warmup_max_lr(scheduler__type: str | None, lr: float) -> float | None:
    """the rise ends at lr"""
    return lr if scheduler__type in RISING else None


@derive
def scheduler__params__warmup_num_steps(
    scheduler__type: str | None, written: Collection[str], auto: Collection[str], train_iters: int, warmup: float
) -> int | None:
    """warmup x train_iters"""
    asked = "scheduler.params.warmup_num_steps" in auto or "scheduler.type" not in written or "warmup" in written
    return max(1, int(train_iters * warmup)) if scheduler__type in WARMING and asked else None


@derive
def scheduler__params__total_num_steps(scheduler__type: str | None, lr_decay_iters: int) -> int | None:
    """the fall ends at lr_decay_iters"""
    return lr_decay_iters if scheduler__type in ENDING else None


@check
def lowest_rate_is_below(min_lr: float, lr: float) -> Refusal:
    """A learning rate that falls must have somewhere to fall."""
    if min_lr <= lr:
        return None
    return f"min_lr ({min_lr}) must be at most lr ({lr})", f"a tenth of lr is usual: min_lr: {lr / 10:g}"


@check
def one_schedule(scheduler__type: str | None, written: Collection[str]) -> Refusal:
    """DeepSpeed's schedule and Megatron's cannot both drive the learning rate."""
    also = [name for name in ("lr_decay_style", "min_lr") if name in written]
    if scheduler__type is None or "scheduler.type" not in written or not also:
        return None
    return (
        f"scheduler.type ({scheduler__type}) and {' and '.join(also)} describe two schedules of the learning rate",
        f"remove the section scheduler to train with {' and '.join(also)}",
    )


@check
def two_spellings_of_a_schedule_agree(
    scheduler__params__warmup_num_steps: int | None,
    scheduler__params__warmup_max_lr: float | None,
    scheduler__params__total_num_steps: int | None,
    written: Collection[str],
    warmup: float,
    lr: float,
    lr_decay_iters: int,
    train_iters: int,
) -> Refusal:
    """What a section `scheduler` says and Megatron's names beside it say too must be the same."""
    section = "scheduler.params."
    pairs = [
        ("warmup", warmup, "warmup_num_steps", scheduler__params__warmup_num_steps, max(1, int(train_iters * warmup))),
        ("lr", lr, "warmup_max_lr", scheduler__params__warmup_max_lr, lr),
        ("lr_decay_iters", lr_decay_iters, "total_num_steps", scheduler__params__total_num_steps, lr_decay_iters),
    ]
    for top, value, nested, other, meant in pairs:
        if {top, section + nested} <= set(written) and other != meant:
            steps = f" = {meant} steps" if value != meant else ""
            what = f"{top} ({value}){steps} and {section}{nested} ({other}) are two values for one setting"
            return what, f"keep {top} or {section}{nested}"
    return None


@check
def one_source_of_the_schedule(override_lr_scheduler: bool, use_checkpoint_lr_scheduler: bool) -> Refusal:
    """A resumed run follows this file's schedule or the checkpoint's."""
    if not (override_lr_scheduler and use_checkpoint_lr_scheduler):
        return None
    return "override_lr_scheduler and use_checkpoint_lr_scheduler exclude each other", "keep one of them"
