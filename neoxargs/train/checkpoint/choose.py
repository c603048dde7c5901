"""Choose the checkpoint that a run loads: the newest one that is undamaged on every host. All ranks agree on it.

Every file is read once and compared with its checksum before any weight is used, by all ranks together. A thread reads
while the model is built.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from threading import Thread

from neoxargs.base.problems import Problem, Problems
from neoxargs.config.config import Config
from neoxargs.files.checkpoints import folder as checkpoint_folder
from neoxargs.train.checkpoint.readers import Readers
from neoxargs.train.process.collectives import of_all_ranks
from neoxargs.train.process.setup import Process


class Verification:
    """A thread that reads this rank's share of a checkpoint's files. Making one is collective, as is `damage`."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint, self.readers = checkpoint, Readers.of(checkpoint)
        self.found: str | Exception = ""
        self.thread = Thread(target=self._read, name="checksums", daemon=True)
        self.thread.start()

    def _read(self) -> None:
        try:
            share = self.readers.number, self.readers.ranks
            self.found = checkpoint_folder.verify(self.checkpoint, share, threads=_threads())
        except Exception as error:
            self.found = error

    def damage(self) -> str:
        """Wait for all ranks, and return what is wrong with the checkpoint on any host, "" if nothing is."""
        self.thread.join()
        if isinstance(self.found, Exception):
            raise self.found
        reasons = of_all_ranks((self.found, socket.gethostname()))
        reason, host = next(((reason, host) for reason, host in reasons if reason), ("", ""))
        return f"{reason} on host {host}" if reason and self.readers.apart else reason


def damage_on_any_host(checkpoint: Path) -> str:
    """Return what is wrong with a checkpoint on any host, "" if nothing is. Collective."""
    return Verification(checkpoint).damage()


def begin(config: Config) -> Verification | None:
    """Begin to read the checkpoint that `choose` will probably choose; None if there is none of deepy's. Collective."""
    if config.checkpoint.load is None:
        return None
    root, iteration = Path(config.checkpoint.load), config.training.iteration
    names = _names(root) if iteration is None else [checkpoint_folder.tag(iteration)]
    # Rank 0 decides for all ranks whether there is one.
    has_files = of_all_ranks(bool(names) and (root / names[0] / checkpoint_folder.FILES).is_file())[0]
    return Verification(root / names[0]) if has_files else None


def choose(config: Config, root: Path, process: Process, begun: Verification | None = None) -> Path | None:
    """Return the checkpoint to load; None if the run starts from scratch. Collective; raises Problems.

    begun: as `begin` returned it.
    """

    def damage(checkpoint: Path) -> str:
        begun_here = begun and begun.checkpoint == checkpoint
        return begun.damage() if begun and begun_here else damage_on_any_host(checkpoint)

    if config.training.iteration is not None:
        checkpoint = root / checkpoint_folder.tag(config.training.iteration)
        if reason := damage(checkpoint):
            what = f"iteration ({config.training.iteration}): {checkpoint} cannot be loaded: {reason}"
            hint = "remove iteration to load the newest undamaged checkpoint"
            raise Problems(Problem(what, hint=hint, id="checkpoint-not-usable", about=("iteration", "load")))
        return checkpoint
    damaged: list[str] = []
    for checkpoint in (root / name for name in _names(root)):
        reason = damage(checkpoint)
        if not reason:
            return checkpoint
        damaged.append(f"{checkpoint.name}: {reason}")
        if process.main:
            print(f"warning: the checkpoint {checkpoint} is skipped because it is damaged: {reason}", flush=True)
    _require_first_start(root, config.checkpoint.save, damaged)
    return None


def _names(root: Path) -> list[str]:
    """Return the names of rank 0's checkpoints, the newest first. Collective.

    On a shared disk, other ranks may not see the newest folder yet, and all must choose the same.
    """
    names: list[str] = of_all_ranks([checkpoint.name for checkpoint in checkpoint_folder.newest_first(root)])[0]
    return names


def _threads() -> int:
    """Return how many threads read files: the CPU cores of this rank, at most 4."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(4, cores // int(os.environ.get("LOCAL_WORLD_SIZE", 1))))


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
