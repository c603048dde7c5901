"""How a checkpoint is added to a folder of them without a bad moment, and how one is removed.

    .writing-global_step200/  being written, or what a killed run left

A checkpoint is written under its hidden name and renamed when complete, so a killed run leaves nothing that
could be mistaken for one. Its list of sizes reveals what was damaged later (a full disk, half a copy).
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from neoxargs.checkpoint_folder import FILES, LATEST, checkpoints, tag

WRITING = ".writing-"
REMOVING = ".removing-"


def begin(folder: Path, iteration: int) -> Path:
    """An empty place to write this checkpoint to; also clears what killed runs left behind."""
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in (*folder.glob(f"{WRITING}*"), *folder.glob(f"{REMOVING}*")):
        shutil.rmtree(leftover)
    part = folder / (WRITING + tag(iteration))
    part.mkdir()
    return part


def commit(folder: Path, iteration: int) -> Path:
    """Make what `begin` began the newest checkpoint. Afterwards, and not before, it is visible.

    One of the same iteration, of an earlier run, is removed when the new one has its place.
    """
    part, whole = folder / (WRITING + tag(iteration)), folder / tag(iteration)
    sizes = {str(file.relative_to(part)): file.stat().st_size for file in part.rglob("*") if file.is_file()}
    (part / FILES).write_text(json.dumps(sizes, indent=0, sort_keys=True), encoding="utf-8")
    before = _hide(whole) if whole.exists() else None
    part.rename(whole)
    _point_latest_at(folder, whole.name)
    if before:
        shutil.rmtree(before)
    return whole


def prune(folder: Path, keep: int) -> None:
    """Remove all but the `keep` checkpoints written last."""
    by_age = sorted(checkpoints(folder), key=lambda path: path.stat().st_mtime_ns)
    for old in by_age[:-keep]:
        remove(old)


def remove(checkpoint: Path) -> None:
    """Hide it first: a removal cut short must not leave half a checkpoint in sight."""
    shutil.rmtree(_hide(checkpoint))


def _hide(checkpoint: Path) -> Path:
    return checkpoint.rename(checkpoint.with_name(REMOVING + checkpoint.name))


def _point_latest_at(folder: Path, name: str) -> None:
    part = folder / f".{LATEST}"
    part.write_text(name, encoding="utf-8")
    os.replace(part, folder / LATEST)
