"""The length of the run and the learning rate schedule: decay length, and GPT-NeoX's or DeepSpeed's schedule."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from neoxargs.base.problems import listed
from neoxargs.facts import lr_phases
from neoxargs.facts.batch_sizes import BatchSizes
from neoxargs.facts.length_units import is_one_iteration
from neoxargs.facts.lengths import Sizes
from neoxargs.facts.lr_schedule import LearningRateCurve
from neoxargs.facts.mistakes import Mistakes
from neoxargs.facts.optimizers import is_onebit
from neoxargs.resolve.rules.rule import (
    Contradiction,
    Findings,
    check,
    derive,
    derives,
    refuse,
    refuse_phases,
    true_names,
    warn,
)

#: DeepSpeed's schedules with a parameter `warmup_max_lr`, with `total_num_steps`, and with `warmup_num_steps`.
WITH_MAX_LR = ("WarmupLR", "WarmupDecayLR")
WITH_TOTAL_STEPS = ("WarmupDecayLR", "WarmupCosineLR")
WITH_WARMUP_STEPS = (*WITH_MAX_LR, "WarmupCosineLR")
#: DeepSpeed's schedules that keep the rate at its maximum after the warm-up.
CONSTANT = ("WarmupLR",)
#: The part of its maximum below which a learning rate is as good as 0; the default of cos_min_ratio is 0.0001.
NO_RATE = 0.001
#: The part of its maximum to which a decay should have brought the rate when the run ends; usual are 0 to 0.1.
CUT_OFF = 0.25
#: The styles that end at min_lr.
DECAYS_TO_MIN = ("linear", "cosine", "inverse-square-root", "WSD")
#: The share of a run that the decay of WSD usually takes (Hu et al. 2024, https://arxiv.org/abs/2404.06395).
USUAL_WSD = 0.1
#: The parameters of the schedules that lr_schedule replaces.
OTHER_SCHEDULES = (
    "scheduler.type", "lr_decay_style", "lr_decay_iters", "lr_decay_fraction", "min_lr", "warmup", "lr_wsd_decay_iters"
)  # fmt: skip
#: The parameters that set the length of the run.
LENGTH = ("train_iters", "train_epochs", "train_samples")


@derives("train_iters")
def train_length_given_once(
    train_iters: int | None,
    train_samples: int | None,
    train_epochs: int | None,
    samples_per_epoch: int,
    train_batch_size: int,
    rampup_batch_size: Sequence[int] | None,
    batch_size_schedule: Sequence[Any] | None,
    seq_length: int,
) -> int | None:
    """train_samples, or train_epochs x the samples of one epoch, / train_batch_size, rounded down; with a ramp, more

    The length of the run determines how much data is prepared and when the learning rate has decayed. Without a length,
    the ranks stop when they build the data. With two different lengths, one of them would be ignored.

        train_epochs: 2
        train_iters: 100
    """
    lengths = {"train_iters": train_iters, "train_epochs": train_epochs, "train_samples": train_samples}
    given = [f"{name} ({length})" for name, length in lengths.items() if length is not None]
    if not given:
        what = "the run length is missing: neither train_iters nor train_epochs is set"
        raise Contradiction(what, "set train_iters to the number of optimizer steps, for example to 1000", LENGTH)
    if len(given) > 1:
        about = [name for name, length in lengths.items() if length is not None]
        what = f"{listed(given, 'and')} {'both' if len(given) == 2 else 'all'} set the run length"
        raise Contradiction(what, "remove one of them" if len(given) == 2 else "keep one of them", about)
    sizes = BatchSizes.with_ramp(train_batch_size, rampup_batch_size, batch_size_schedule, seq_length)
    if train_epochs is not None:
        return _steps(train_epochs, samples_per_epoch, sizes)
    if train_samples is not None and train_samples < sizes.first:
        what = f"train_samples ({train_samples}) is less than the first batch ({sizes.first})"
        raise Contradiction(what, "increase train_samples, or decrease the batch size", ["train_samples"])
    return train_iters if train_samples is None else sizes.iterations_in(train_samples)


def _steps(train_epochs: int, samples_per_epoch: int, sizes: BatchSizes) -> int:
    """Return the number of optimizer steps in this number of epochs."""
    if not samples_per_epoch:
        what = f"train_epochs ({train_epochs}) needs token files, whose sample count determines the number of steps"
        advice = "tokenise the text with `deepy data` and set data_path or train_data_paths, or set train_iters instead"
        raise Contradiction(what, advice, about=["train_epochs"])
    if train_epochs * samples_per_epoch < sizes.first:
        batch = "the first batch" if sizes.changes else "train_batch_size"
        what = f"train_epochs ({train_epochs}) x samples per epoch ({samples_per_epoch:,}) is less than {batch} "
        raise Contradiction(
            f"{what}({sizes.first})", "increase train_epochs, or decrease the batch size",
            about=["train_epochs", "train_batch_size"],
        )  # fmt: skip
    return sizes.iterations_in(train_epochs * samples_per_epoch)


@check
def epochs_read_each_sample_equally_often(
    train_epochs: int | None,
    train_data_weights: Sequence[float] | None,
    weight_by_num_documents: bool,
    train_data_mixture: object,
    train_data_max_epochs: object,
    data_path: object,
    sample_order: str,
) -> Findings:
    """An epoch reads every training sample once. Weights contradict this, because some datasets are then read more
    often than others. megatron-core's sample order has no epochs.

        train_epochs: 2
        data_path: [0.3, code, 0.7, web]
    """
    names = true_names(
        train_data_weights=len(set(train_data_weights or ())) > 1,
        weight_by_num_documents=weight_by_num_documents,
        train_data_mixture=train_data_mixture is not None,
        train_data_max_epochs=train_data_max_epochs is not None,
        data_path=isinstance(data_path, list) and any(not isinstance(part, str) for part in data_path),
        sample_order=sample_order == "megatron-core",
    )
    if train_epochs is not None and names:
        given = listed([f"the weights in {name}" if name == "data_path" else name for name in names], "and")
        what = f"with train_epochs ({train_epochs}), every sample is read equally often, which contradicts {given}"
        yield refuse(what, f"remove {given}, or set train_iters instead", about=["train_epochs", *names])


@derives("lr_decay_iters")
def lr_decay_length_given_once(
    lr_decay_iters: int | None,
    lr_decay_fraction: float | None,
    lr_decay_samples: int | None,
    train_iters: int,
    train_batch_size: int,
    rampup_batch_size: Sequence[int] | None,
    batch_size_schedule: Sequence[Any] | None,
    seq_length: int,
) -> int:
    """the learning rate decays until the end of training, or over lr_decay_fraction of the iterations

    With two lengths, the learning rate would decay over one of them, and the other would be ignored. With a length
    below one iteration, the run would train at min_lr from its first step.

        lr_decay_iters: 60
        lr_decay_fraction: 0.5
    """
    if lr_decay_samples is not None:
        others = {"lr_decay_iters": lr_decay_iters, "lr_decay_fraction": lr_decay_fraction}
        if also := [f"{name} ({value})" for name, value in others.items() if value is not None]:
            what = f"{listed([f'lr_decay_samples ({lr_decay_samples})', *also], 'and')} set the length of the decay"
            names = [name for name, value in others.items() if value is not None]
            raise Contradiction(what, "keep one of them", ["lr_decay_samples", *names])
        sizes = BatchSizes.with_ramp(train_batch_size, rampup_batch_size, batch_size_schedule, seq_length)
        return max(1, sizes.iterations_in(lr_decay_samples))
    if lr_decay_fraction is None:
        return lr_decay_iters or train_iters
    counted = int(train_iters * lr_decay_fraction)
    if lr_decay_iters not in (None, counted):
        raise Contradiction(
            f"lr_decay_iters ({lr_decay_iters}) must equal lr_decay_fraction ({lr_decay_fraction}) "
            f"x train_iters ({train_iters}) = {counted}",
            "remove lr_decay_iters or lr_decay_fraction",
            about=["lr_decay_iters", "lr_decay_fraction", "train_iters"],
        )
    if counted == 0:
        raise Contradiction(
            f"lr_decay_fraction ({lr_decay_fraction}) x train_iters ({train_iters}) is less than one iteration",
            "remove lr_decay_fraction to decay until the end of training",
            about=["lr_decay_fraction", "train_iters"],
        )
    return counted


@derive
def scheduler__type(optimizer__type: str, written: Collection[str]) -> str | None:
    """GPT-NeoX uses WarmupDecayLR with 1-bit optimizers unless lr_decay_style is set"""
    return "WarmupDecayLR" if is_onebit(optimizer__type) and "lr_decay_style" not in written else None


@derive
def scheduler__params__warmup_max_lr(scheduler__type: str | None, lr: float) -> float | None:
    """the warm-up ends at lr"""
    return lr if scheduler__type in WITH_MAX_LR else None


@derive
def scheduler__params__warmup_num_steps(
    scheduler__params__warmup_num_steps: int | None,
    scheduler__type: str | None,
    written: Collection[str],
    auto: Collection[str],
    train_iters: int,
    warmup: float,
) -> int | None:
    """warmup x train_iters, and at least 1, because DeepSpeed refuses 0"""
    if scheduler__params__warmup_num_steps is not None:
        return max(1, scheduler__params__warmup_num_steps)
    # A schedule that the user chose keeps DeepSpeed's own warm-up unless `auto` or `warmup` asks for another.
    asked = "scheduler.params.warmup_num_steps" in auto or "scheduler.type" not in written or "warmup" in written
    return max(1, int(train_iters * warmup)) if scheduler__type in WITH_WARMUP_STEPS and asked else None


@derive
def scheduler__params__total_num_steps(scheduler__type: str | None, lr_decay_iters: int) -> int | None:
    """the decay ends at lr_decay_iters"""
    return lr_decay_iters if scheduler__type in WITH_TOTAL_STEPS else None


@check
def min_lr_at_most_lr(min_lr: float, lr: float) -> Findings:
    """The learning rate decays from lr to min_lr. With min_lr above lr, it would increase during the run, and training
    could diverge at any point.

        min_lr: 0.01
        lr: 0.001
    """
    if min_lr > lr:
        yield refuse(f"min_lr ({min_lr}) must be at most lr ({lr})", f"set min_lr to {lr / 10:g}, a tenth of lr")


@check
def scheduler_excludes_lr_decay_style(scheduler__type: str | None, written: Collection[str]) -> Findings:
    """DeepSpeed's section scheduler and GPT-NeoX's lr_decay_style and min_lr describe two schedules. The optimizer
    follows only one of them, and the other would be ignored.

        scheduler: {type: WarmupLR}
        lr_decay_style: cosine
    """
    also = [name for name in ("lr_decay_style", "min_lr") if name in written]
    if scheduler__type is not None and "scheduler.type" in written and also:
        names, schedule = " and ".join(also), f"scheduler.type ({scheduler__type})"
        what = f"{schedule} cannot be combined with {names}: both define the learning rate schedule"
        yield refuse(what, f"remove the scheduler section, or {names}", about=["scheduler.type", *also])


@check
def lr_schedule_has_valid_phases(
    lr_schedule: Sequence[Any] | None,
    lr: float,
    train_iters: int,
    train_batch_size: int,
    rampup_batch_size: Sequence[int] | None,
    batch_size_schedule: Sequence[Any] | None,
    seq_length: int,
) -> Findings:
    """lr_schedule lists the phases of the learning rate in their order. A phase that is not understood would train with
    another rate than the one that was meant.

        lr_schedule: [{style: linear, until: 2000, from: 0, to: 0.001}, {style: quadratic}]
    """
    sizes = _sizes(train_iters, train_batch_size, rampup_batch_size, batch_size_schedule, seq_length)
    yield from refuse_phases("lr_schedule", lr_schedule, lambda: lr_phases.phases(lr_schedule or (), lr, sizes))


def _sizes(
    train_iters: int, batch: int, ramp: Sequence[int] | None, phases: Sequence[Any] | None, seq_length: int
) -> Sizes:
    return Sizes(train_iters, BatchSizes.with_ramp(batch, ramp, phases, seq_length), seq_length)


def _valid_phases(lr_schedule: Sequence[Any] | None, lr: float, sizes: Sizes) -> Sequence[lr_phases.Phase]:
    """Return the phases; none if lr_schedule has mistakes, which another rule reports."""
    try:
        return lr_phases.phases(lr_schedule or (), lr, sizes)
    except Mistakes:
        return ()


@check
def lr_schedule_reaches_the_end_of_the_run(
    lr_schedule: Sequence[Any] | None,
    lr: float,
    train_iters: int,
    train_batch_size: int,
    rampup_batch_size: Sequence[int] | None,
    batch_size_schedule: Sequence[Any] | None,
    seq_length: int,
) -> Findings:
    """After its last phase, the learning rate stays where it is. If that is 0, the rest of the run takes time, but
    changes no weight. A decay of one iteration, until: 1, is meant to be one of the whole run, until: 1.0.

        lr_schedule: [{style: linear, until: 1, from: 0, to: 0.001}, {style: cosine, until: 50, to: 0}]
        train_iters: 1000
    """
    sizes = _sizes(train_iters, train_batch_size, rampup_batch_size, batch_size_schedule, seq_length)
    found, about = _valid_phases(lr_schedule, lr, sizes), ["lr_schedule", "train_iters"]
    decays = len(found) == 1 < train_iters and found[0].start > found[0].end
    if lr_schedule and decays and is_one_iteration(lr_schedule[0].get("until")):
        what = f"the only phase of lr_schedule ends after 1 of {train_iters} iterations"
        yield warn(what, "write until: 1.0 for the whole run, or remove until", about)
    elif found and found[-1].until < train_iters and found[-1].end <= 0:
        left = train_iters - found[-1].until
        what = f"the learning rate is 0 in the last {left} of {train_iters} iterations, after the phases of lr_schedule"
        yield warn(what, "remove until from the last phase, which then ends with the run", about)


@check
def lr_is_the_highest_rate_of_lr_schedule(
    lr_schedule: Sequence[Any] | None,
    lr: float,
    train_iters: int,
    train_batch_size: int,
    rampup_batch_size: Sequence[int] | None,
    batch_size_schedule: Sequence[Any] | None,
    seq_length: int,
) -> Findings:
    """lr is the highest learning rate of a run: what other checks judge, and what a reader of the file expects. A phase
    above it is often a mistake in the exponent.

        lr: 0.001
        lr_schedule: [{style: linear, until: 10, from: 0, to: 0.01}, {style: cosine, to: 0}]
    """
    sizes = _sizes(train_iters, train_batch_size, rampup_batch_size, batch_size_schedule, seq_length)
    found = _valid_phases(lr_schedule, lr, sizes)
    highest = max((rate for phase in found for rate in phase[2:]), default=0.0)
    if highest > lr:
        what = f"lr_schedule has a learning rate of {highest:g}, above lr ({lr:g})"
        yield warn(what, f"set lr to {highest:g}, or correct the phase", about=["lr_schedule", "lr"])


@check
def lr_schedule_is_the_only_schedule(
    lr_schedule: Sequence[Any] | None, scheduler__type: str | None, written: Collection[str]
) -> Findings:
    """lr_schedule lists the whole schedule of the learning rate. Keys that describe another one beside it, such as
    warmup or lr_decay_style, would be ignored.

        lr_schedule: [{style: linear, until: 10, from: 0, to: 0.001}, {style: cosine, to: 0}]
        lr_decay_style: cosine
    """
    also = [name for name in OTHER_SCHEDULES if name in written]
    if lr_schedule is not None and also:
        what = f"lr_schedule cannot be combined with {listed(also, 'and')}: both define the learning rate schedule"
        yield refuse(what, f"remove {listed(also, 'and')}, or lr_schedule", about=["lr_schedule", *also])


@check
def wsd_decay_follows_the_warm_up(
    lr_decay_style: str, lr_wsd_decay_iters: int | None, lr_decay_iters: int, warmup: float, scheduler__type: str | None
) -> Findings:
    """With WSD, the learning rate is constant between the warm-up and a decay of lr_wsd_decay_iters iterations, which
    ends at lr_decay_iters. Without this number there is no decay, and Megatron-LM stops on every rank; a decay that is
    longer than what the warm-up leaves would begin with a jump.

        train_iters: 1000
        lr_decay_style: WSD
    """
    if lr_decay_style != "WSD" or scheduler__type:
        return
    usual = max(1, int(USUAL_WSD * lr_decay_iters))
    hint = f"set lr_wsd_decay_iters to {usual}, {USUAL_WSD:.0%} of lr_decay_iters"
    left = lr_decay_iters - int(warmup * lr_decay_iters)
    if lr_wsd_decay_iters is None:
        what = "with lr_decay_style WSD, lr_wsd_decay_iters must be set"
        yield refuse(what, hint, about=["lr_decay_style", "lr_wsd_decay_iters"])
    elif lr_wsd_decay_iters > left:
        what = f"lr_wsd_decay_iters ({lr_wsd_decay_iters}) must be at most {left}, which the warm-up ({warmup:g}) "
        what += f"leaves of lr_decay_iters ({lr_decay_iters})"
        yield refuse(what, hint, about=["lr_wsd_decay_iters", "lr_decay_iters", "warmup"])


@check
def inverse_square_root_begins_after_a_warm_up(
    lr_decay_style: str, warmup: float, lr_decay_iters: int, scheduler__type: str | None
) -> Findings:
    """The inverse square root continues a warm-up: the rate is lr x sqrt(warm-up / iteration). Without a warm-up of at
    least one iteration, it would fall to a small part of lr within the first iterations.

        lr_decay_style: inverse-square-root
        warmup: 0
    """
    if lr_decay_style == "inverse-square-root" and not scheduler__type and warmup * lr_decay_iters < 1:
        what = f"with lr_decay_style inverse-square-root, warmup ({warmup:g}) must be at least one iteration of "
        what += f"lr_decay_iters ({lr_decay_iters})"
        yield refuse(what, "set warmup, for example to 0.01", about=["lr_decay_style", "warmup"])


@check
def lr_stays_above_zero(
    lr_decay_iters: int,
    train_iters: int,
    lr_decay_style: str,
    min_lr: float,
    scheduler__type: str | None,
    scheduler__params__total_num_steps: int | None,
    scheduler__params__cos_min_ratio: float | None,
    written: Collection[str],
) -> Findings:
    """After lr_decay_iters, the learning rate stays at min_lr, and after total_num_steps of a DeepSpeed schedule, at
    its minimum. If it is 0, the remaining iterations take time, but do not change the weights
    (https://github.com/deepspeedai/DeepSpeed/issues/633).

        train_iters: 1000
        lr_decay_iters: 10
        lr_decay_style: cosine
    """
    if scheduler__type in WITH_TOTAL_STEPS:
        end = scheduler__params__total_num_steps or train_iters
        floor = (scheduler__params__cos_min_ratio or 0) if scheduler__type == "WarmupCosineLR" else 0
        if end < train_iters and floor <= NO_RATE:
            yield warn(
                f"the learning rate is {f'lr x {floor:g}' if floor else '0'} in the last {train_iters - end} of "
                f"{train_iters} iterations, because scheduler.params.total_num_steps is {end}",
                f"set scheduler.params.total_num_steps to {train_iters}",
                about=["scheduler.params.total_num_steps", "train_iters"],
            )
    elif not scheduler__type and lr_decay_style in DECAYS_TO_MIN and min_lr <= 0 and lr_decay_iters < train_iters:
        in_samples = "lr_decay_samples" in written
        yield warn(
            f"the learning rate is 0 in the last {train_iters - lr_decay_iters} of {train_iters} iterations, because "
            f"lr_decay_iters is {lr_decay_iters} and min_lr is 0",
            f"{'remove lr_decay_samples' if in_samples else f'set lr_decay_iters to {train_iters}'}, or set min_lr",
            about=["lr_decay_iters", "train_iters", "min_lr"],
        )


@check
def warm_up_ends_before_the_run(
    warmup: float,
    lr_decay_iters: int,
    train_iters: int,
    scheduler__type: str | None,
    scheduler__params__warmup_num_steps: int | None,
) -> Findings:
    """A warm-up that is as long as the run, or longer, never reaches the learning rate that is set: the run trains with
    a fraction of it. That happens to a shortened run and to small datasets, because DeepSpeed's schedules warm up for
    1000 steps by default, and because warmup is a share of lr_decay_iters. Both count optimizer steps, not micro
    batches (https://github.com/Morizeyao/GPT2-Chinese/issues/60, https://github.com/pytorch/torchtitan/pull/938).

        train_iters: 100
        scheduler: {type: WarmupLR}
    """
    of_deepspeed = scheduler__type in WITH_WARMUP_STEPS
    name, steps = _warm_up(warmup, lr_decay_iters, scheduler__type, scheduler__params__warmup_num_steps)
    if 0 < train_iters <= steps:
        if of_deepspeed:
            given, advice = f"{name} ({steps})", f"set {name} to {max(1, train_iters // 100)}"
        else:
            given = f"warmup ({warmup:g}) x lr_decay_iters ({lr_decay_iters}) = {steps}"
            advice = "set warmup to 0.01" + ", and remove lr_decay_iters" * (lr_decay_iters > train_iters)
        end = f"train_iters ({train_iters})"
        what = f"the learning rate is still rising when the run ends: {given} is not less than {end}"
        yield warn(what, advice, about=_about_warm_up(name))


def _warm_up(warmup: float, decay_iters: int, scheduler: str | None, deepspeed_steps: int | None) -> tuple[str, int]:
    """Return the parameter that sets the warm-up, and its optimizer steps; 0 of a schedule without one."""
    if scheduler in WITH_WARMUP_STEPS:
        return "scheduler.params.warmup_num_steps", deepspeed_steps or 0
    return "warmup", 0 if scheduler else int(warmup * decay_iters)


def _about_warm_up(name: str) -> list[str]:
    return [name, *["lr_decay_iters"] * (name == "warmup"), "train_iters"]


@check
def warm_up_leaves_time_to_train(
    warmup: float,
    lr_decay_iters: int,
    train_iters: int,
    scheduler__type: str | None,
    scheduler__params__warmup_num_steps: int | None,
) -> Findings:
    """A warm-up takes a small part of a run, usually 1 to 10 %. One that takes half of it or more trains most of the
    run with a fraction of the learning rate that is set. That happens when a number of steps, or a share of a long
    decay, is kept for a shorter run (https://github.com/PeterGriffinJin/Search-R1/issues/28,
    https://github.com/axolotl-ai-cloud/axolotl/pull/2897).

        train_iters: 100
        warmup: 0.6
    """
    of_deepspeed = scheduler__type in WITH_WARMUP_STEPS
    name, steps = _warm_up(warmup, lr_decay_iters, scheduler__type, scheduler__params__warmup_num_steps)
    if train_iters / 2 <= steps < train_iters:
        usual = str(max(1, train_iters // 20)) if of_deepspeed else f"{0.05 * train_iters / lr_decay_iters:.2g}"
        what = f"the learning rate rises in the first {steps} of {train_iters} iterations"
        yield warn(what, f"set {name} to {usual}, for 5 % of the run", about=_about_warm_up(name))


@check
def decay_lasts_most_of_the_run(
    lr: float, min_lr: float, lr_decay_style: str, lr_decay_iters: int, train_iters: int, scheduler__type: str | None
) -> Findings:
    """After lr_decay_iters, the learning rate stays at min_lr. A run that was extended while its decay was not, or
    whose decay counts something else, such as epochs, spends most of its time at the lowest rate, where little is
    learned. Published schedules decay over the whole run (Hoffmann et al. 2022, https://arxiv.org/abs/2203.15556,
    appendix B; https://github.com/NVIDIA-NeMo/RL/issues/1269).

        train_iters: 1000
        lr_decay_iters: 100
        lr_decay_style: cosine
        min_lr: 1.0e-4
    """
    decays = not scheduler__type and lr_decay_style in DECAYS_TO_MIN and 0 < min_lr < lr / 2
    if decays and 2 * lr_decay_iters <= train_iters:
        yield warn(
            f"the learning rate is at its minimum, min_lr ({min_lr:g}), in the last {train_iters - lr_decay_iters} of "
            f"{train_iters} iterations, because lr_decay_iters is {lr_decay_iters}",
            f"set lr_decay_iters to {train_iters}, or remove it",
            about=["lr_decay_iters", "train_iters", "min_lr"],
        )


@check
def decay_ends_with_the_run(
    lr: float,
    min_lr: float,
    warmup: float,
    lr_decay_style: str,
    lr_decay_iters: int,
    train_iters: int,
    scheduler__type: str | None,
) -> Findings:
    """Most of what a decay gains comes from its end, where the learning rate is low. In a run that was shortened while
    its decay was not, the rate is still high at the end, and the loss is worse than that of a run of this length could
    be (https://github.com/openai/parameter-golf/pull/48). For the first part of a longer run, this is right.

        train_iters: 100
        lr_decay_iters: 1000
        lr_decay_style: cosine
    """
    if not scheduler__type and lr_decay_style in ("linear", "cosine") and lr > min_lr:
        curve = LearningRateCurve(lr_decay_style, lr, min_lr, warmup * lr_decay_iters, lr_decay_iters)
        yield from _cut_off(curve, train_iters, "lr_decay_iters")


@check
def total_steps_end_with_the_run(
    lr: float,
    train_iters: int,
    gradient_accumulation_steps: int,
    scheduler__type: str | None,
    scheduler__params__total_num_steps: int | None,
    scheduler__params__warmup_num_steps: int | None,
) -> Findings:
    """DeepSpeed's schedules count optimizer steps until total_num_steps. A number that counts micro batches, or that
    was kept when the run was shortened, ends the run while the learning rate is still high
    (https://github.com/deepspeedai/DeepSpeed/issues/633, https://github.com/huggingface/diffusers/issues/4387).

        train_iters: 100
        gradient_accumulation_steps: 8
        scheduler: {type: WarmupDecayLR, params: {warmup_num_steps: 10, total_num_steps: 800}}
    """
    if scheduler__type not in WITH_TOTAL_STEPS or not lr:
        return
    end, style = scheduler__params__total_num_steps or 0, "cosine" if scheduler__type == "WarmupCosineLR" else "linear"
    curve = LearningRateCurve(style, lr, 0, scheduler__params__warmup_num_steps or 0, end)
    in_micro_batches = gradient_accumulation_steps > 1 and end == train_iters * gradient_accumulation_steps
    counted = f" (train_iters x gradient_accumulation_steps, {gradient_accumulation_steps})" if in_micro_batches else ""
    yield from _cut_off(curve, train_iters, "scheduler.params.total_num_steps", counted)


def _cut_off(curve: LearningRateCurve, train_iters: int, name: str, counted: str = "") -> Findings:
    """Yield the finding about a decay of which the run sees only the beginning."""
    if not curve.warmup_iters < train_iters < curve.decay_iters:
        return
    share = (curve.rate(train_iters) - curve.min_lr) / (curve.lr - curve.min_lr)
    if share > CUT_OFF:
        decayed = f"decayed only to {share:.0%}" if share < 0.995 else "hardly decayed"
        what = f"the learning rate has {decayed} when the run ends after {train_iters} iterations"
        hint = f"set {name} to {train_iters}, unless this run is the first part of a longer one"
        yield warn(f"{what}, because {name} is {curve.decay_iters}{counted}", hint, about=[name, "train_iters"])


@check
def rate_decays(
    scheduler__type: str | None,
    scheduler__params__warmup_num_steps: int | None,
    train_iters: int,
    written: Collection[str],
) -> Findings:
    """WarmupLR only warms up: afterwards the learning rate stays at its maximum until the end, where a decay would
    lower the loss. Configurations for Hugging Face's Trainer often have such a section beside a cosine schedule, which
    then has no effect (https://github.com/hiyouga/LlamaFactory/issues/1515,
    https://github.com/modelscope/ms-swift/issues/491).

        train_iters: 10000
        scheduler: {type: WarmupLR}
    """
    constant = train_iters - (scheduler__params__warmup_num_steps or 0)
    if scheduler__type in CONSTANT and "scheduler.type" in written and 2 * constant > train_iters:
        yield warn(
            f"with scheduler.type ({scheduler__type}), the learning rate does not decay: it is constant in the last "
            f"{constant} of {train_iters} iterations",
            "set scheduler.type to WarmupDecayLR or WarmupCosineLR; for a constant rate, replace the section with "
            "lr_decay_style: constant",
            about=["scheduler.type"],
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
) -> Findings:
    """warmup, lr and lr_decay_iters set the same values as warmup_num_steps, warmup_max_lr and total_num_steps in the
    section scheduler. DeepSpeed reads only the section, and the top-level values would be ignored.

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
            steps = f", which is {meant} steps" if value != meant else ""
            what = f"{top} ({value}{steps}) and {section}{nested} ({other}) are the same setting and must be equal"
            yield refuse(what, f"remove {top} or {section}{nested}", about=[section + nested, top])
            return


@check
def one_lr_schedule_on_resume(override_lr_scheduler: bool, use_checkpoint_lr_scheduler: bool) -> Findings:
    """A resumed run follows either its configuration's schedule (override_lr_scheduler) or the checkpoint's schedule
    (use_checkpoint_lr_scheduler). With both, an assertion in GPT-NeoX stops every rank.

        load: checkpoints
        override_lr_scheduler: true
        use_checkpoint_lr_scheduler: true
    """
    if override_lr_scheduler and use_checkpoint_lr_scheduler:
        what = "override_lr_scheduler and use_checkpoint_lr_scheduler cannot be combined"
        advice = "keep only override_lr_scheduler to use this configuration's schedule,"
        yield refuse(what, f"{advice} or keep only use_checkpoint_lr_scheduler to use the checkpoint's schedule")
