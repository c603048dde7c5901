"""Each rank's own folder on a drive that weights or optimizer states are swapped to (`nvme_path`).

DeepSpeed gives its files the same names in every run, and empties their folder when it starts. A folder belongs to the
process that holds a lock in it; it goes when that process ends, or else, if it was killed, when the next one comes.
"""

from __future__ import annotations

import atexit
import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import IO, Any

PREFIX, LOCK = "swap-", ".lock"


def on_own_folders(json: dict[str, Any]) -> dict[str, Any]:
    """DeepSpeed's configuration with a folder of this process in the place of every `nvme_path`."""
    zero = json.get("zero_optimization", {})
    swapped = {
        name: {**section, "nvme_path": str(own(Path(section["nvme_path"])))}
        for name, section in zero.items()
        if name.startswith("offload_") and section.get("device") == "nvme"
    }
    return {**json, "zero_optimization": zero | swapped} if swapped else json


@cache
def own(place: Path) -> Path:
    """A new folder in this one."""
    place.mkdir(parents=True, exist_ok=True)
    with _locked(place):  # so that nobody takes a folder that is not yet locked for one that is left over
        for folder in place.glob(f"{PREFIX}*/"):
            _remove_if_left(folder)
        mine = Path(mkdtemp(prefix=PREFIX, dir=place))
        held = _locked(mine)
    atexit.register(_remove, mine, held)
    return mine


def _locked(folder: Path, wait: bool = True) -> IO[str]:
    """A file that holds the folder's lock until it is closed; raises BlockingIOError where that would have to wait."""
    file = open(folder / LOCK, "w")  # noqa: SIM115
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise
    return file


def _remove_if_left(folder: Path) -> None:
    try:
        with _locked(folder, wait=False):
            shutil.rmtree(folder, ignore_errors=True)
    except OSError:  # somebody's, or another user's
        return


def _remove(folder: Path, held: IO[str]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    held.close()


@contextmanager
def in_memory(zero: Any, group: int) -> Iterator[None]:
    """Within this the weights and states of one of ZeRO-3's groups may be changed, wherever they are kept."""
    on_nvme = zero._swappable_optimizer_subgroup(group)
    if on_nvme:
        zero._optimizer_states_and_gradient_swap_in(group)
    yield
    zero._reassign_or_swap_out_partitioned_parameters(group)
    if on_nvme:
        zero._optimizer_states_and_gradient_swap_out(group)


def swapped_files(engine: Any) -> dict[str, str]:
    """Number of a tensor of ZeRO-3's optimizer -> its file in a checkpoint, a copy of the one on the drive."""
    zero, folder = engine.optimizer, f"offloaded_tensors/rank{engine.global_rank:02d}"
    return {
        str(number): f"{folder}/{tensor.ds_id}.tensor.swp"
        for number, tensor in enumerate(zero.fp32_partitioned_groups_flat)
        if zero._swappable_optimizer_subgroup(number)
    }
