"""Choose the checkpoint that a run loads: the newest one that is undamaged on every host. All ranks agree on it.

Every file is read once and compared with its checksum before any weight is used, by all ranks together. Hosts that see
the folder on a shared disk divide the files among all their ranks; a host with a folder of its own reads it alone.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import torch.distributed

from neoxargs.base.problems import Problem, Problems
from neoxargs.config.config import Config
from neoxargs.files.checkpoints import folder as checkpoint_folder
from neoxargs.train.process.setup import Process


def choose(config: Config, root: Path, process: Process) -> Path | None:
    """Return the checkpoint to load; None if the run starts from scratch. Collective; raises Problems."""
    if config.training.iteration is not None:
        return _checkpoint_of_iteration(root, config.training.iteration)
    # Rank 0's list: on a shared disk, other ranks may not see the newest folder yet, and all must choose the same.
    names: list[str] = _gather([checkpoint.name for checkpoint in checkpoint_folder.newest_first(root)])[0]
    damaged: list[str] = []
    for checkpoint in (root / name for name in names):
        reason = damage_on_any_host(checkpoint)
        if not reason:
            return checkpoint
        damaged.append(f"{checkpoint.name}: {reason}")
        if process.main:
            print(f"warning: the checkpoint {checkpoint} is skipped because it is damaged: {reason}", flush=True)
    _require_first_start(root, config.checkpoint.save, damaged)
    return None


def damage_on_any_host(checkpoint: Path) -> str:
    """Return what is wrong with a checkpoint on any host, "" if nothing is. Collective."""
    folder = _identity(checkpoint)
    folders = _gather(folder)
    # The ranks that see the same folder divide its files.
    readers = [rank for rank, other in enumerate(folders) if other == folder]
    share = readers.index(torch.distributed.get_rank()), len(readers)
    reason = checkpoint_folder.verify(checkpoint, share, threads=_threads())
    reasons = _gather((reason, socket.gethostname()))
    found = next(((reason, host) for reason, host in reasons if reason), None)
    if found is None:
        return ""
    return found[0] if len(set(folders)) == 1 else f"{found[0]} on host {found[1]}"


def _identity(checkpoint: Path) -> tuple[object, ...]:
    """Return what is equal on two hosts only if they see the same folder."""
    try:
        stat = (checkpoint / checkpoint_folder.FILES).stat()
    except OSError:
        return (socket.gethostname(),)
    # Hosts with a shared disk see the same file: inode, time and size are those that the server reports.
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def _threads() -> int:
    """Return how many threads read files: the CPU cores of this rank, at most 4."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(4, cores // int(os.environ.get("LOCAL_WORLD_SIZE", 1))))


def _gather(value: Any) -> list[Any]:
    """Return the values of all ranks."""
    values: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(values, value)
    return values


def _checkpoint_of_iteration(root: Path, iteration: int) -> Path:
    checkpoint = root / checkpoint_folder.tag(iteration)
    if damage := damage_on_any_host(checkpoint):
        what = f"iteration ({iteration}): {checkpoint} cannot be loaded: {damage}"
        hint = "remove iteration to load the newest undamaged checkpoint"
        raise Problems(Problem(what, hint=hint, id="checkpoint-not-usable", about=("iteration", "load")))
    return checkpoint


def _require_first_start(root: Path, save: str | None, damaged: list[str]) -> None:
    """Raise Problems unless the run may start from scratch: no damaged checkpoints, and `save` is the same folder."""
    if damaged:
        what = f"load ({root}): every checkpoint in this folder is damaged ({'; '.join(damaged)})"
        hint = "set load to a folder with an undamaged checkpoint, or remove load to start from scratch"
        raise Problems(Problem(what, hint=hint, id="checkpoint-all-damaged", about=("load",)))
    if save is None or Path(save).resolve() != root.resolve():
        hint = "remove load to start from scratch, or set load and save to the same folder to resume on every restart"
        what = f"load ({root}): there is no checkpoint in this folder"
        raise Problems(Problem(what, hint=hint, id="checkpoint-missing", about=("load",)))
