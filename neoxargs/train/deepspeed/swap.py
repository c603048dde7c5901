"""A separate swap folder for each rank below `nvme_path`, where weights or optimizer states are offloaded to.

DeepSpeed 0.19 uses the same file names in every run and empties the folder when it starts, so two runs with one
`nvme_path` would destroy each other's files. A folder belongs to the process that holds the lock in it. It is removed
when that process exits, or, if it was killed, by the next process that uses the same `nvme_path`.
"""

from __future__ import annotations

import atexit
import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import IO, Any

from neoxargs.train.deepspeed import interface

PREFIX, LOCK = "swap-", ".lock"


def with_own_folders(json: dict[str, Any]) -> dict[str, Any]:
    """Return DeepSpeed's configuration with each `nvme_path` replaced by a folder for this process below it."""
    zero = json.get("zero_optimization", {})
    swapped = {
        name: {**section, "nvme_path": str(own_folder(Path(section["nvme_path"])))}
        for name, section in zero.items()
        if name.startswith("offload_") and section.get("device") == "nvme"
    }
    return {**json, "zero_optimization": zero | swapped} if swapped else json


@cache
def own_folder(parent: Path) -> Path:
    """Create a folder for this process in `parent`; remove those of processes that were killed."""
    parent.mkdir(parents=True, exist_ok=True)
    with _lock(parent):  # so that no process removes a folder between its creation and its lock
        for folder in parent.glob(f"{PREFIX}*/"):
            with suppress(OSError), _lock(folder, wait=False):  # in use, or of another user
                shutil.rmtree(folder, ignore_errors=True)
        created = Path(mkdtemp(prefix=PREFIX, dir=parent))
        lock = _lock(created)
    atexit.register(_remove, created, lock)
    return created


def _lock(folder: Path, wait: bool = True) -> IO[str]:
    """Lock the folder until the returned file is closed.

    wait: if False, raise BlockingIOError when another process holds the lock.
    """
    file = open(folder / LOCK, "w")  # noqa: SIM115
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise
    return file


def _remove(folder: Path, lock: IO[str]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    lock.close()


@contextmanager
def in_memory(zero: interface.Zero3, group: int) -> Iterator[None]:
    """Within this, the weights and states of a ZeRO-3 parameter group are in memory and may be changed."""
    on_nvme = zero._swappable_optimizer_subgroup(group)
    if on_nvme:
        zero._optimizer_states_and_gradient_swap_in(group)
    yield
    # Copies the fp32 values into the model's 16-bit partitions, or writes those to the NVMe device.
    zero._reassign_or_swap_out_partitioned_parameters(group)
    if on_nvme:
        zero._optimizer_states_and_gradient_swap_out(group)


def swapped_files(engine: interface.Engine) -> dict[str, str]:
    """Return, for each swapped tensor of ZeRO-3's optimizer, its number -> its file's path in a checkpoint.

    DeepSpeed copies the swap files into the checkpoint.
    """
    zero: interface.Zero3 = engine.optimizer
    folder = f"offloaded_tensors/rank{engine.global_rank:02d}"
    return {
        str(number): f"{folder}/{tensor.ds_id}.tensor.swp"
        for number, tensor in enumerate(zero.fp32_partitioned_groups_flat)
        if zero._swappable_optimizer_subgroup(number)
    }
