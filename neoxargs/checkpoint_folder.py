"""The checkpoints in a folder, and which of them are complete; used before a start and by every rank.

    global_step100/           one checkpoint, under DeepSpeed's and GPT-NeoX's name
        files.json            name and size of every other file in it
        config.json           the values of the run that differ from the defaults
    latest                    the name of the newest checkpoint, as DeepSpeed expects it

`train/checkpoint/commit.py` adds a checkpoint, and makes sure that an incomplete one is never found.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from neoxargs.registry import REGISTRY
from neoxargs.sizes.lr_schedule import Get

PREFIX = "global_step"
LATEST = "latest"
FILES = "files.json"
CONFIG = "config.json"


def tag(iteration: int) -> str:
    """Return the name of a checkpoint's folder."""
    return f"{PREFIX}{iteration}"


def iteration_of(checkpoint: Path) -> int:
    return int(checkpoint.name[len(PREFIX) :])


def checkpoints(folder: Path) -> list[Path]:
    """Return every checkpoint, damaged or not, in the order of iterations."""
    if not os.path.isdir(folder):  # Path.glob raises OSError if the name is too long
        return []
    found = [path for path in folder.glob(f"{PREFIX}*") if path.is_dir() and path.name[len(PREFIX) :].isdigit()]
    return sorted(found, key=iteration_of)


def newest(folder: Path) -> Path | None:
    """Return the checkpoint to continue from: the one that `latest` names, or the last undamaged one."""
    others = list(reversed(checkpoints(folder)))
    named = folder / (latest(folder) or LATEST)  # LATEST is not the name of any checkpoint
    candidates = [named, *others] if named in others else others
    return next((candidate for candidate in candidates if not damage(candidate)), None)


def damage(checkpoint: Path) -> str:
    """Return what is wrong with a checkpoint (a file is missing or has a wrong size), "" if it is complete.

    Checkpoints of other programs have no files.json and are assumed to be complete.
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


def configuration(checkpoint: Path) -> dict[str, Any] | None:
    """Return the values of the run that wrote the checkpoint, nested as ranks receive them; None if not recorded."""
    try:
        values = json.loads((checkpoint / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return values if isinstance(values, dict) else None


def schedule(checkpoint: Path) -> Get | None:
    """Return a lookup by name of the learning rate parameters that a checkpoint continues with.

    None if they are not recorded, for example because the run itself followed the schedule of an earlier checkpoint.
    """
    values = configuration(checkpoint)
    if values is None or values.get("use_checkpoint_lr_scheduler"):
        return None
    return lambda name: values.get(name, REGISTRY.parameters[name].default)


def latest(folder: Path) -> str | None:
    """Return the name in the file `latest`; None if there is no such file."""
    try:
        return (folder / LATEST).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
