"""Check that a resumed run continues the checkpoint's learning rate schedule and its epochs.

A different schedule is an error. A jump that only follows from the length of the run, or of its samples, is a warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from neoxargs.base.problems import Place, Problem, listed
from neoxargs.config.config import Config
from neoxargs.facts.batch_sizes import PHASES, RAMP, BatchSizes
from neoxargs.facts.lr_schedule import Get, LearningRateCurve, differing
from neoxargs.facts.mistakes import Mistakes
from neoxargs.files.checkpoints import folder as checkpoint_folder
from neoxargs.files.checkpoints.optimizer_state import trains_the_same_part


def other_schedule(config: Config, checkpoint: Path | None) -> Iterator[Problem]:
    """The error that every rank would raise for another schedule, or a warning about a jump of the learning rate."""
    if checkpoint is None or chooses_schedule(config) or not _resumes(config, checkpoint):
        return
    theirs = checkpoint_folder.schedule(checkpoint)
    if theirs is None:
        return
    iteration = checkpoint_folder.iteration_of(checkpoint)
    # Equal parameters can still give another rate, because the decay of `train_iters` is derived from the run's length.
    before, after = (LearningRateCurve.of(get).rate(iteration) for get in (theirs, config.get))
    names = differing(config.get, theirs)
    hint = _choices(config, theirs, names, f"{before:.3g}", f"{after:.3g}")
    if names:
        yield _refusal(config, theirs, names, iteration, hint)
    elif before != after:
        yield _jump(config, theirs, iteration, f"from {before:.3g} to {after:.3g}", hint)


def other_epochs(config: Config, checkpoint: Path | None) -> Iterator[Problem]:
    """The error of a run that would not end after `train_epochs`, because its first steps had another batch size."""
    iteration = checkpoint_folder.iteration_of(checkpoint) if checkpoint else 0
    if checkpoint is None or not config.training.train_epochs or not iteration or config.checkpoint.finetune:
        return
    saved, sizes = checkpoint_folder.configuration(checkpoint) or {}, BatchSizes.of(config.get)
    if not isinstance(saved.get("train_batch_size"), int):
        return
    here = checkpoint_folder.position_of(checkpoint, config.get).onwards(sizes)
    steps = max(iteration, config.training.train_iters)
    if here.iterations_in(sizes.samples_after(config.training.train_iters)) != steps:
        yield _wrong_length(config, saved, here)


def _wrong_length(config: Config, saved: Mapping[str, Any], here: BatchSizes) -> Problem:
    """Return the error of a wrong number of steps. here: the batch sizes after the checkpoint's position."""
    epochs, steps = config.training.train_epochs, config.training.train_iters
    wanted = BatchSizes.of(config.get).samples_after(steps)
    name = next((name for name in ("train_batch_size", RAMP, PHASES) if saved.get(name) != config.get(name)), RAMP)
    before, now = (f"{each:,}" if isinstance(each, int) else each for each in (saved.get(name), config.get(name)))
    what = (
        f"train_epochs ({epochs}) is {steps:,} steps with {name} ({now}), but the first {here.iteration:,} "
        f"steps, up to the checkpoint to be loaded, had a {name} of {before} and read {here.samples:,} samples: "
        f"the run would read {here.samples_after(max(here.iteration, steps)):,} samples instead of {wanted:,}"
    )
    hint = (
        f"set {name}: {saved.get(name)}; or replace train_epochs with train_iters: {here.iterations_in(wanted)}, with "
        "which the remaining samples may be drawn in a different order"
    )
    about = ("train_epochs", name, "load")
    return Problem(what, config.place("train_epochs"), hint, id="checkpoint-other-epochs", about=about)


def chooses_schedule(config: Config) -> bool:
    """Return whether the configuration chooses the schedule, or uses one of DeepSpeed's, which only save a step."""
    options = config.schedule
    return options.override_lr_scheduler or options.use_checkpoint_lr_scheduler or config.scheduler.type is not None


def _resumes(config: Config, checkpoint: Path) -> bool:
    """Return whether the run continues the schedule of the checkpoint that it loads."""
    if config.checkpoint.finetune:
        return False
    # An imported model has a schedule, but only a run that takes over the optimizer state needs it.
    if config.checkpoint.no_load_optim and not checkpoint_folder.iteration_of(checkpoint):
        return False
    return trains_the_same_part(config, checkpoint)


def _refusal(config: Config, theirs: Get, names: Sequence[str], iteration: int, hint: str) -> Problem:
    pairs = ", ".join(
        f"{name} is {config.get(name)} in this configuration and {theirs(name)} in the checkpoint" for name in names
    )
    what = f"load ({config.checkpoint.load}): the checkpoint from iteration {iteration} has a different learning rate"
    what += f" schedule: {pairs}"
    places = [place for name in names if (place := config.place(name))]
    first: Place | None = places[0] if places else config.place("load")
    return Problem(what, first, hint, tuple(places[1:]), id="checkpoint-other-lr-schedule", about=("load", *names))


def _jump(config: Config, theirs: Get, iteration: int, rates: str, hint: str) -> Problem:
    """Return the warning about another rate of the same schedule. rates: the jump."""
    names, phases = _moving(config, theirs, iteration), bool(config.schedule.lr_schedule)
    changed = (f"{name} is {config.get(name)} (was {theirs(name)})" for name in names)
    what = (
        f"{listed([*changed], 'and')} since the checkpoint was saved. This "
        f"{'moves the phases of lr_schedule' if phases else 'changes the decay'}: at iteration {iteration} the "
        f"learning rate jumps {rates}"
    )
    about = (*names, "lr_schedule" if phases else "lr_decay_iters", "load")
    place = next(filter(None, map(config.place, names)), config.place("load"))
    return Problem(what, place, hint, severity="warning", id="checkpoint-lr-jumps", about=about)


def _moving(config: Config, theirs: Get, iteration: int) -> list[str]:
    """Return the parameters beside those of the schedule whose other values change its rate at an iteration."""
    changed: dict[str, None] = {}

    def compared(name: str) -> Any:
        if config.get(name) != theirs(name):
            changed[name] = None
        return config.get(name)

    rate = LearningRateCurve.of(compared).rate(iteration)

    def has_effect(name: str) -> bool:
        """Return whether the old value of this parameter alone leads to another rate, or to an invalid schedule."""
        try:
            before = LearningRateCurve.of(lambda other: (theirs if other == name else config.get)(other))
            return before.rate(iteration) != rate
        except Mistakes:
            return True

    # The end of the decay follows from the length of the run.
    names = ["train_iters" if name == "lr_decay_iters" else name for name in changed if has_effect(name)] or [*changed]
    if "train_iters" in names and not config.is_set("train_iters"):
        names += [name for name in config.source("train_iters").inputs if config.get(name) != theirs(name)]
    return [*dict.fromkeys(names)]


def _choices(config: Config, theirs: Get, names: Sequence[str], before: str, after: str) -> str:
    """Return a hint with the parameters that choose the schedule and the learning rates that follow."""
    end, options = theirs("lr_decay_iters"), config.schedule
    decay = f"set lr_decay_iters: {end} to end the decay where the checkpoint's schedule ends it; or "
    only_decay = set(names) <= {"lr_decay_iters"} and options.lr_decay_fraction is None and not options.lr_schedule
    return (
        f"{decay * only_decay}set use_checkpoint_lr_scheduler: true to continue with the checkpoint's schedule "
        f"(learning rate {before}), or override_lr_scheduler: true to use this configuration's schedule ({after})"
    )
