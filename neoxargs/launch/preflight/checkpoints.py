"""Checkpoints before a start: one that a run would write over, one that it cannot begin with, one to read only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from neoxargs.problems import Problem
from neoxargs.resolve.config import Config

#: What DeepSpeed calls the folder of a checkpoint, before the iteration.
PREFIX = "global_step"


def overwritten(config: Config) -> Iterator[Problem]:
    """A run that does not continue what an earlier one saved there would mix its files with the earlier run's."""
    options = config.checkpoint
    save, load = options.save, options.load
    if not save or (load and _same(load, save) and not options.finetune):
        return
    iteration = newest(Path(save))
    if iteration is not None:
        hint = "write another save" if load else f"write load: {save} to continue, or another save"
        what = f"save ({save}) holds a checkpoint of iteration {iteration}"
        yield Problem(what, config.place("save"), hint)


def absent(config: Config) -> Iterator[Problem]:
    """A place to continue from without a checkpoint; where the run saves there too, it has only not begun yet."""
    load, save = config.checkpoint.load, config.checkpoint.save
    if not load or (save and _same(load, save)):
        return
    if newest(Path(load)) is None:
        hint = "leave load out to start from scratch, or make it the same as save to continue when there is one"
        yield Problem(f"load ({load}): there is no checkpoint in it", config.place("load"), hint)


def unreadable(config: Config) -> Iterator[Problem]:
    """No checkpoint for generate.py and eval.py, which read from `load`, or else from where the run has saved."""
    options, iteration = config.checkpoint, config.training.iteration
    name = "load" if options.load else "save"
    folder = options.load or options.save
    if not folder:
        yield Problem("there is no checkpoint to read", hint="write load: FOLDER")
    elif newest(Path(folder)) is None:
        hint = "load is where the checkpoint is; python deepy.py train.py with save: FOLDER writes one"
        yield Problem(f"{name} ({folder}): there is no checkpoint in it", config.place(name), hint)
    elif iteration is not None and not (wanted := Path(folder, f"{PREFIX}{iteration}")).is_dir():
        hint = f"the newest one is of iteration {newest(Path(folder))}"
        yield Problem(f"iteration ({iteration}): there is no {wanted}", config.place("iteration"), hint)


def _same(one: str, other: str) -> bool:
    return Path(one).resolve() == Path(other).resolve()


def newest(folder: Path) -> int | None:
    """The last iteration of which there is a checkpoint, damaged or not; None without one."""
    if not os.path.isdir(folder):  # asked so because a name may be too long for Path.glob
        return None
    names = [path.name[len(PREFIX) :] for path in folder.glob(f"{PREFIX}*") if path.is_dir()]
    return max((int(name) for name in names if name.isdigit()), default=None)
