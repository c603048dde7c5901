"""Check that the folders and files of a run are writable, and that there is space for checkpoints and index files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from neoxargs.base.files import nearest_existing, why_unwritable
from neoxargs.base.problems import Problem
from neoxargs.config.config import Config
from neoxargs.facts.batch_sizes import BatchSizes
from neoxargs.facts.timeline import checkpoint_bytes, most_at_once, save_iterations
from neoxargs.hosts.devices import host_memory

#: Index files of the samples: where each begins and its place in the order; in passes over documents, only the latter.
INDEX_BYTES, PASSES_BYTES = 12, 10
#: The parameters that name folders that training writes to.
WRITTEN = ("save", "run_dir", "log_dir", "tensorboard_dir")


def index_problems(config: Config, remote: bool) -> Iterator[Problem]:
    """Yield the problem of a run so long that the index files of its samples fit into neither memory nor disk.

    Rank 0 writes them before the first step. remote: whether that is on another machine, with other memory.
    """
    iterations, run_dir = config.training.train_iters, config.logging.run_dir
    samples = BatchSizes.of(config.get).samples_after(iterations)
    size = samples * (INDEX_BYTES if config.data.pack_impl == "packed" else PASSES_BYTES)
    free = shutil.disk_usage(nearest_existing(Path(run_dir))).free
    memory = size if remote else host_memory()
    # A folder that cannot be written to is an error of its own.
    if size <= min(free, memory) or why_unwritable(Path(run_dir)):
        return
    if sum(path.stat().st_size for path in Path(run_dir, "data", "index").glob("*.npy")) >= size:
        return  # written by an earlier run
    lacks = f"the disk that holds run_dir ({run_dir}) has only {_size(free)} free"
    lacks = f"this machine has {_size(memory)} of memory" if memory < size else lacks
    what = f"train_iters ({iterations:,}) needs the order of {samples:,} samples, which is computed "
    what += f"before the first step and takes {_size(size)} of memory and disk, but {lacks}"
    hint = "set train_iters to the number of steps that the run will make"
    hint += "" if memory < size else ", or set run_dir to a folder on a disk with more free space"
    about = ("train_iters", "train_batch_size", "run_dir")
    yield Problem(what, config.place("train_iters"), hint, id="sample-order-too-large", about=about)


def folder_problems(config: Config) -> list[Problem]:
    """Return the problems of the folders that training writes to: not writable, or no space for the checkpoints."""
    unwritable = config.found(lambda: unwritable_folders(config, *WRITTEN))
    return unwritable or config.found(lambda: _too_little_space(config))


def unwritable_folders(config: Config, *names: str) -> Iterator[Problem]:
    """Return a problem for each of these parameters whose folder cannot be created or written to."""
    known = filter(config.knows, reversed(names))
    folders = {config.get(name): name for name in known}  # of two parameters with one folder, the first
    for folder, name in folders.items():
        if folder and (why := why_unwritable(Path(folder))):
            what, hint = f"{name} ({folder}): {why}", f"set {name} to a folder that this user can write to"
            yield Problem(what, config.place(name), hint, id="folder-not-writable", about=(name,))


def unwritable_file(config: Config, name: str) -> Iterator[Problem]:
    """Yield the problem of a parameter whose file cannot be created or written to."""
    if not (named := config.get(name)):
        return
    path, why = Path(named), ""
    if os.path.isdir(path):
        why = "this is a folder"
    elif not os.path.exists(path):
        why = why_unwritable(path)
    elif not os.access(path, os.W_OK):
        why = "this user has no permission to write to this file"
    if why:
        what, hint = f"{name} ({named}): {why}", f"set {name} to a file that this user can write to"
        yield Problem(what, config.place(name), hint, id="output-file-unwritable", about=(name,))


def _too_little_space(config: Config) -> Iterator[Problem]:
    save = config.checkpoint.save
    if not save or not (size := checkpoint_bytes(config)):
        return
    free = shutil.disk_usage(nearest_existing(Path(save))).free
    together = checkpoints_together(config)
    what = f"save ({save}): the disk has {_size(free)} free, but"
    other = "set save to a folder on a disk with more free space"
    if size > free:
        what = f"{what} one checkpoint needs about {_size(size)}"
        yield Problem(what, config.place("save"), other, id="disk-too-small", about=("save",))
    elif size * together > free:
        fits = free // size
        hint = f"set keep_last_n_checkpoints: {fits - 1}, or {other}" if fits > 1 else other
        what = f"{what} {together} checkpoints of about {_size(size)} each need {_size(size * together)}"
        about = ("save", "keep_last_n_checkpoints", "checkpoint_factor")
        yield Problem(what, config.place("save"), hint, severity="warning", id="disk-too-small-for-all", about=about)


def checkpoints_together(config: Config) -> int:
    """Return the largest number of checkpoints that `save` holds at a time."""
    # One more at the end of the run.
    return most_at_once(len(save_iterations(config.checkpoint, config.training.train_iters)) + 1, config)


def _size(size: int) -> str:
    number, unit = (size / 1e9, "GB") if size >= 1e9 else (size / 1e6, "MB")
    return f"{number:.3g} {unit}" if number < 1000 else f"{number:,.0f} {unit}"
