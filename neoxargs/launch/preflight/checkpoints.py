"""Checkpoints before a start: one that a run would write over, one that it cannot begin with, one to read only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from neoxargs import checkpoint_folder
from neoxargs.problems import Problem
from neoxargs.resolve.config import Config


def overwritten_checkpoint(config: Config) -> Iterator[Problem]:
    """A run that does not continue what an earlier one saved there would mix its files with the earlier run's."""
    options = config.checkpoint
    save, load = options.save, options.load
    if not save or (load and _same(load, save) and not options.finetune):
        return
    iteration = _last_iteration(Path(save))
    if iteration is not None:
        hint = "write another save" if load else f"write load: {save} to continue, or another save"
        what = f"save ({save}) holds a checkpoint of iteration {iteration}"
        yield Problem(what, config.place("save"), hint, id="checkpoint-overwritten", about=("save", "load"))


def missing_checkpoint(config: Config) -> Iterator[Problem]:
    """A place to continue from without a checkpoint; where the run saves there too, it has only not begun yet."""
    load, save = config.checkpoint.load, config.checkpoint.save
    if not load or (save and _same(load, save)):
        return
    if _last_iteration(Path(load)) is None:
        hint = "leave load out to start from scratch, or make it the same as save to continue when there is one"
        what = f"load ({load}): there is no checkpoint in it"
        yield Problem(what, config.place("load"), hint, id="checkpoint-missing", about=("load",))


def no_checkpoint_to_read(config: Config) -> Iterator[Problem]:
    """No checkpoint for generate.py and eval.py, which read from `load`, or else from where the run has saved."""
    options, iteration = config.checkpoint, config.training.iteration
    name = "load" if options.load else "save"
    folder = options.load or options.save
    if not folder:
        yield Problem(
            "there is no checkpoint to read", hint="write load: FOLDER", id="checkpoint-missing", about=("load",)
        )
    elif _last_iteration(Path(folder)) is None:
        hint = "load is where the checkpoint is; python deepy.py train.py with save: FOLDER writes one"
        what = f"{name} ({folder}): there is no checkpoint in it"
        yield Problem(what, config.place(name), hint, id="checkpoint-missing", about=(name,))
    elif iteration is not None and not (wanted := Path(folder, checkpoint_folder.tag(iteration))).is_dir():
        hint = f"the newest one is of iteration {_last_iteration(Path(folder))}"
        what, about = f"iteration ({iteration}): there is no {wanted}", ("iteration", name)
        yield Problem(what, config.place("iteration"), hint, id="checkpoint-missing", about=about)


def _same(one: str, other: str) -> bool:
    return Path(one).resolve() == Path(other).resolve()


def _last_iteration(folder: Path) -> int | None:
    """Of the checkpoints there, damaged or not; None without one."""
    found = checkpoint_folder.checkpoints(folder)
    return checkpoint_folder.iteration_of(found[-1]) if found else None
