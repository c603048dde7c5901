"""Add checkpoints to a folder and remove them, so that a killed run never leaves a partial one that looks complete.

    .writing-global_step200/     being written, or left by a killed run
    .removing-global_step100/    being removed, or left by a killed run

A checkpoint is written under a hidden name and renamed once it is complete. Its files.json lists the size of every
file, which reveals later damage such as a full disk or an interrupted copy.
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
    """Return an empty hidden folder to write this checkpoint to; remove what killed runs left in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in (*folder.glob(f"{WRITING}*"), *folder.glob(f"{REMOVING}*")):
        shutil.rmtree(leftover)
    part = folder / (WRITING + tag(iteration))
    part.mkdir()
    return part


def commit(folder: Path, iteration: int) -> Path:
    """Make the checkpoint that `begin` started visible, and the newest one; return its folder.

    A checkpoint of the same iteration, left by an earlier run, is removed after the new one has taken its place.
    """
    part, final = folder / (WRITING + tag(iteration)), folder / tag(iteration)
    sizes = {str(file.relative_to(part)): file.stat().st_size for file in part.rglob("*") if file.is_file()}
    (part / FILES).write_text(json.dumps(sizes, indent=0, sort_keys=True), encoding="utf-8")
    replaced = _hide(final) if final.exists() else None
    part.rename(final)
    _point_latest_at(folder, final.name)
    if replaced:
        shutil.rmtree(replaced)
    return final


def prune(folder: Path, keep: int) -> None:
    """Remove all but the `keep` checkpoints written last."""
    # By time, not by iteration: a folder may hold later iterations of an earlier run.
    by_age = sorted(checkpoints(folder), key=lambda path: path.stat().st_mtime_ns)
    for old in by_age[:-keep]:
        remove(old)


def remove(checkpoint: Path) -> None:
    """Hide the checkpoint, then delete it: an interrupted deletion must not leave a partial one visible."""
    shutil.rmtree(_hide(checkpoint))


def _hide(checkpoint: Path) -> Path:
    return checkpoint.rename(checkpoint.with_name(REMOVING + checkpoint.name))


def _point_latest_at(folder: Path, name: str) -> None:
    # Written beside and renamed, because a rename is atomic and a write is not.
    part = folder / f".{LATEST}"
    part.write_text(name, encoding="utf-8")
    os.replace(part, folder / LATEST)
