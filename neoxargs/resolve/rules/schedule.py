"""The learning rate over a run: how long it falls, and which of two schedules is meant."""

from __future__ import annotations

from collections.abc import Collection

from neoxargs.resolve.rules.optimizer import is_onebit
from neoxargs.resolve.rules.rule import Contradiction, Finding, check, derive, derives, refuse

#: DeepSpeed's schedules that rise from a lowest to a highest rate, and those that end after a number of steps.
RISING = ("WarmupLR", "WarmupDecayLR")
ENDING = ("WarmupDecayLR", "WarmupCosineLR")
WARMING = (*RISING, "WarmupCosineLR")


@derives("train_iters")
def train_length_given_once(train_iters: int | None, train_epochs: int | None) -> int | None:
    """train.py counts them from train_epochs, once it knows the data

    The length of the run decides how much data is prepared and when the learning rate has decayed. Without one the
    ranks stop when they build the data; with two, the run would end earlier or later than one of them says.

        train_epochs: 2
        train_iters: 100
    """
    if train_iters is None and train_epochs is None:
        raise Contradiction("nothing says how long to train: train_iters is missing", "write train_iters: 1000")
    if train_iters is not None and train_epochs is not None:
        raise Contradiction(
            f"train_iters ({train_iters}) and train_epochs ({train_epochs}) both say how long to train",
            "keep one of them",
        )
    return train_iters


@derives("lr_decay_iters")
def lr_decay_length_given_once(lr_decay_iters: int | None, lr_decay_fraction: float | None, train_iters: int) -> int:
    """the learning rate falls until the end of training, or for lr_decay_fraction of it

    With two lengths the learning rate would decay over one of them and the other would be ignored; over less than one
    iteration, the run would train at min_lr from its first step.

        lr_decay_iters: 60
        lr_decay_fraction: 0.5
    """
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
            about=["lr_decay_fraction", "train_iters"],
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
def min_lr_at_most_lr(min_lr: float, lr: float) -> Finding | None:
    """The learning rate decays from lr to min_lr. With min_lr above lr it would rise over the whole run, and training
    diverges at some point on the way.

        min_lr: 0.01
        lr: 0.001
    """
    if min_lr <= lr:
        return None
    return refuse(f"min_lr ({min_lr}) must be at most lr ({lr})", f"a tenth of lr is usual: min_lr: {lr / 10:g}")


@check
def scheduler_excludes_lr_decay_style(scheduler__type: str | None, written: Collection[str]) -> Finding | None:
    """DeepSpeed's section scheduler and GPT-NeoX's lr_decay_style and min_lr describe two schedules. Only one drives
    the optimizer, and the learning rate would follow another course than half of the file says.

        scheduler: {type: WarmupLR}
        lr_decay_style: cosine
    """
    also = [name for name in ("lr_decay_style", "min_lr") if name in written]
    if scheduler__type is None or "scheduler.type" not in written or not also:
        return None
    return refuse(
        f"scheduler.type ({scheduler__type}) and {' and '.join(also)} describe two schedules of the learning rate",
        f"remove the section scheduler to train with {' and '.join(also)}",
        about=["scheduler.type", *also],
    )


@check
def scheduler_params_agree_with_lr(
    scheduler__params__warmup_num_steps: int | None,
    scheduler__params__warmup_max_lr: float | None,
    scheduler__params__total_num_steps: int | None,
    written: Collection[str],
    warmup: float,
    lr: float,
    lr_decay_iters: int,
    train_iters: int,
) -> Finding | None:
    """warmup, lr and lr_decay_iters say what warmup_num_steps, warmup_max_lr and total_num_steps of the section
    scheduler say too. DeepSpeed follows its own: the rate that the file names at the top would never be reached.

        lr: 0.001
        scheduler: {type: WarmupLR, params: {warmup_max_lr: 0.002}}
    """
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
            return refuse(what, f"keep {top} or {section}{nested}", about=[section + nested, top])
    return None


@check
def one_lr_schedule_on_resume(override_lr_scheduler: bool, use_checkpoint_lr_scheduler: bool) -> Finding | None:
    """A resumed run follows the schedule of its file (override_lr_scheduler) or the one that the checkpoint holds
    (use_checkpoint_lr_scheduler). GPT-NeoX stops in an assertion on every rank when both are asked for.

        load: checkpoints
        override_lr_scheduler: true
        use_checkpoint_lr_scheduler: true
    """
    if not (override_lr_scheduler and use_checkpoint_lr_scheduler):
        return None
    return refuse("override_lr_scheduler and use_checkpoint_lr_scheduler exclude each other", "keep one of them")
