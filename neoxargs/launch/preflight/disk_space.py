"""Can checkpoints be written where `save` says, and how many of them? Asked before the ranks start."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from neoxargs.problems import Problem
from neoxargs.resolve.config import Config
from neoxargs.sizes.model import parameters, vocabulary_rows
from neoxargs.sizes.optimizer_state import moments


def folder_problems(config: Config) -> list[Problem]:
    """What is wrong with the folders of `save` and `run_dir`: an error where not even one checkpoint can be written."""
    save, wrong = config.checkpoint.save, list(unwritable_folders(config, "save", "run_dir"))
    return wrong or (list(_too_little_space(config, shutil.disk_usage(_existing(Path(save))).free)) if save else [])


def unwritable_folders(config: Config, *names: str) -> Iterator[Problem]:
    """Folders, by the parameters that name them, that may not be written to or cannot be made."""
    folders = {config.get(name): name for name in reversed(names)}  # of two names for one, the first
    for folder, name in folders.items():
        if folder and (why := why_unwritable(Path(folder))):
            what, hint = f"{name} ({folder}): {why}", f"write another {name}"
            yield Problem(what, config.place(name), hint, id="folder-not-writable", about=(name,))


def why_unwritable(folder: Path) -> str:
    """Why nothing can be written below a folder that is there or is still to be made; empty if something can."""
    there = _existing(folder)
    if not there.is_dir():
        return f"{there} is a file"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"{there} cannot be written to"
    if max(len(os.fsencode(part)) for part in folder.parts) > os.pathconf(there, "PC_NAME_MAX"):
        return f"a name in it is longer than the file system of {there} takes"
    # /proc and /sys let root write by their permissions, but no file can be made there
    if not os.statvfs(there).f_blocks:
        return f"it cannot be created, because the file system of {there} holds no files"
    return ""


def _too_little_space(config: Config, free: int) -> Iterator[Problem]:
    size = checkpoint_bytes(config)
    if not size:
        return
    # one more than are kept, because the oldest is removed after the newest is whole
    most, kept = max(1, count_saves(config)), config.checkpoint.keep_last_n_checkpoints
    together = min(most, kept + 1) if kept else most
    what = f"save ({config.checkpoint.save}): {_size(free)} are free there, and"
    if size > free:
        what = f"{what} one checkpoint takes about {_size(size)}"
        yield Problem(what, config.place("save"), "write another save", id="disk-too-small", about=("save",))
    elif size * together > free:
        fits = free // size
        hint = f"write keep_last_n_checkpoints: {fits - 1}, or another save" if fits > 1 else "write another save"
        what = f"{what} {together} checkpoints of {_size(size)} take {_size(size * together)}"
        about = ("save", "keep_last_n_checkpoints", "checkpoint_factor")
        yield Problem(what, config.place("save"), hint, severity="warning", id="disk-too-small-for-all", about=about)


def checkpoint_bytes(config: Config) -> int:
    """Weights as they are computed with, and unless `no_save_optim` their fp32 copies and the optimizer's state."""
    rows = vocabulary_rows(config)
    if rows is None:
        return 0
    half = config.precision.precision != "fp32"
    states = 0 if config.checkpoint.no_save_optim else 4 * (moments(config) + half)
    return parameters(config, rows) * ((2 if half else 4) + states)


def count_saves(config: Config) -> int:
    """How many checkpoints a whole run writes."""
    options, steps = config.checkpoint, config.training.train_iters
    factor = options.checkpoint_factor or 0
    if options.checkpoint_scale == "log":
        count, step = 0, 1.0
        while factor > 1 and step < steps:
            count, step = count + 1, step * factor
    else:
        count = int((steps - 1) // factor) if factor else 0
    return count + len(options.extra_save_iters or ()) + 1


def _existing(folder: Path) -> Path:
    """The folder itself or the nearest one above it that is there."""
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if os.path.exists(path))


def _size(size: int) -> str:
    number, unit = (size / 1e9, "GB") if size >= 1e9 else (size / 1e6, "MB")
    return f"{number:.3g} {unit}" if number < 1000 else f"{number:,.0f} {unit}"
