"""What checkpoints a folder holds, and which of them may be trusted: read before a start, and by every rank.

    global_step100/           one checkpoint, under DeepSpeed's and GPT-NeoX's name
        files.json            every other file in it and its size
        config.json           what the run was, as far as it differs from the defaults
    latest                    the name of the newest one, as DeepSpeed reads it

How one is added, and why half a checkpoint is never found here: `train/checkpoint/commit.py`.
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
    """The name of a checkpoint's folder."""
    return f"{PREFIX}{iteration}"


def iteration_of(checkpoint: Path) -> int:
    return int(checkpoint.name[len(PREFIX) :])


def checkpoints(folder: Path) -> list[Path]:
    """Every checkpoint, damaged or not, oldest iteration first."""
    if not os.path.isdir(folder):  # asked so because a name may be too long for Path.glob
        return []
    found = [path for path in folder.glob(f"{PREFIX}*") if path.is_dir() and path.name[len(PREFIX) :].isdigit()]
    return sorted(found, key=iteration_of)


def newest(folder: Path) -> Path | None:
    """The checkpoint to continue from: the one `latest` names, or else the last of those that are undamaged."""
    others = list(reversed(checkpoints(folder)))
    named = folder / _latest(folder)
    candidates = [named, *others] if named in others else others
    return next((candidate for candidate in candidates if not damage(candidate)), None)


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


def configuration(checkpoint: Path) -> dict[str, Any] | None:
    """The values of the run that wrote it, nested as every rank receives them; None where it does not say."""
    try:
        values = json.loads((checkpoint / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return values if isinstance(values, dict) else None


def schedule(checkpoint: Path) -> Get | None:
    """The parameters of the learning rate that a checkpoint goes on with, by name.

    None where it does not say, as that of a run which itself followed an earlier checkpoint's schedule.
    """
    values = configuration(checkpoint)
    if values is None or values.get("use_checkpoint_lr_scheduler"):
        return None
    return lambda name: values.get(name, REGISTRY.parameters[name].default)


def _latest(folder: Path) -> str:
    try:
        return (folder / LATEST).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return LATEST  # names no checkpoint
