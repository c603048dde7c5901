"""A learning rate that would not go on as the checkpoint's: refused, or told where it only follows `train_iters`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from neoxargs import checkpoint_folder
from neoxargs.problems import Place, Problem
from neoxargs.resolve.config import Config
from neoxargs.sizes.lr_schedule import Get, LearningRateCurve, differing


def other_schedule(config: Config) -> Iterator[Problem]:
    """What every rank would refuse, or else by how much the rate jumps at the iteration that the run resumes from."""
    checkpoint = None if _says_whose(config) else _continued(config)
    theirs = checkpoint_folder.schedule(checkpoint) if checkpoint else None
    if checkpoint is None or theirs is None:
        return
    iteration = checkpoint_folder.iteration_of(checkpoint)
    before, after = (LearningRateCurve.of(get).rate(iteration) for get in (theirs, config.get))
    names = differing(config.get, theirs)
    hint = _choices(config, theirs, names, f"{before:.3g}", f"{after:.3g}")
    if names:
        yield _refusal(config, theirs, names, iteration, hint)
    elif before != after:
        what = (
            f"train_iters ({config.training.train_iters}) is {theirs('train_iters')} in the checkpoint of iteration "
            f"{iteration}, and the decay follows it: the learning rate goes from {before:.3g} to {after:.3g} there"
        )
        about = ("train_iters", "lr_decay_iters", "load")
        place = config.place("train_iters")
        yield Problem(what, place, hint, severity="warning", id="checkpoint-lr-jumps", about=about)


def _says_whose(config: Config) -> bool:
    """Does the file choose between both schedules, or use one of DeepSpeed's, which remember only the iteration?"""
    options = config.schedule
    return options.override_lr_scheduler or options.use_checkpoint_lr_scheduler or config.scheduler.type is not None


def _continued(config: Config) -> Path | None:
    """The checkpoint whose optimizer and schedule a run would go on with."""
    options, iteration = config.checkpoint, config.training.iteration
    if not options.load or options.finetune or options.no_load_optim:
        return None
    if iteration is None:
        return checkpoint_folder.newest(Path(options.load))
    named = Path(options.load, checkpoint_folder.tag(iteration))
    return named if named.is_dir() else None


def _refusal(config: Config, theirs: Get, names: Sequence[str], iteration: int, hint: str) -> Problem:
    pairs = ", ".join(f"{name} ({config.get(name)}) is {theirs(name)} there" for name in names)
    what = f"load ({config.checkpoint.load}): the checkpoint of iteration {iteration} has another schedule: {pairs}"
    found = [place for name in names if (place := config.place(name))]
    first: Place | None = found[0] if found else config.place("load")
    about = ("load", *names)
    return Problem(what, first, hint, also=tuple(found[1:]), id="checkpoint-other-lr-schedule", about=about)


def _choices(config: Config, theirs: Get, names: Sequence[str], before: str, after: str) -> str:
    """What each of the three parameters that decide it does here."""
    decay = f"lr_decay_iters: {theirs('lr_decay_iters')} ends the decay where the checkpoint's ends; "
    only_decay = set(names) <= {"lr_decay_iters"} and config.schedule.lr_decay_fraction is None
    return (
        f"{decay * only_decay}use_checkpoint_lr_scheduler: true goes on with the checkpoint's schedule ({before}), "
        f"override_lr_scheduler: true with this file's ({after})"
    )
