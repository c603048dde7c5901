"""A folder of checkpoints on disk: what is in it, what may be trusted, and how one is added without a bad moment.

    global_step100/           one checkpoint, under DeepSpeed's and GPT-NeoX's name
        files.json            every other file in it and its size
    latest                    the name of the newest one, as DeepSpeed reads it
    .writing-global_step200/  being written, or what a killed run left

A checkpoint is written under its hidden name and renamed when complete, so a killed run leaves nothing that
could be mistaken for one. Its list of sizes reveals what was damaged later (a full disk, half a copy).
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

PREFIX = "global_step"
WRITING = ".writing-"
REMOVING = ".removing-"
LATEST = "latest"
FILES = "files.json"


def tag(iteration: int) -> str:
    return f"{PREFIX}{iteration}"


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


def newest(folder: Path) -> Path | None:
    """The checkpoint to continue from: the one `latest` names, or else the last of those that are undamaged."""
    named = folder / _latest(folder)
    others = sorted(checkpoints(folder), key=iteration_of, reverse=True)
    candidates = [named, *others] if named in others else others
    return next((candidate for candidate in candidates if not damage(candidate)), None)


def checkpoints(folder: Path) -> list[Path]:
    """Every checkpoint, oldest iteration first."""
    found = [path for path in folder.glob(f"{PREFIX}*") if path.is_dir() and path.name[len(PREFIX) :].isdigit()]
    return sorted(found, key=iteration_of)


def iteration_of(checkpoint: Path) -> int:
    return int(checkpoint.name[len(PREFIX) :])


def damage(checkpoint: Path) -> str:
    """What is wrong with a checkpoint: a file that is missing or has another size; "" when nothing is.

    Checkpoints of other programs carry no list of their files and are taken on trust.
    """
    try:
        sizes = json.loads((checkpoint / FILES).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return ""
    except ValueError:
        return f"{FILES} cannot be read"
    for name, size in sizes.items():
        file = checkpoint / name
        if not file.exists():
            return f"{name} is missing"
        if file.stat().st_size != size:
            return f"{name} has {file.stat().st_size} bytes instead of {size}"
    return ""


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


def _latest(folder: Path) -> str:
    try:
        return (folder / LATEST).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return LATEST  # names no checkpoint


def _point_latest_at(folder: Path, name: str) -> None:
    part = folder / f".{LATEST}"
    part.write_text(name, encoding="utf-8")
    os.replace(part, folder / LATEST)
