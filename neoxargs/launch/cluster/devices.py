"""How many accelerators this machine has, asked of the operating system: importing torch would take seconds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

Device = Literal["cuda", "cpu"]


def device(environ: Mapping[str, str], dev: Path = Path("/dev")) -> Device:
    """What the ranks of a local run compute on; `DS_ACCELERATOR` decides where it is set, as in DeepSpeed."""
    forced = environ.get("DS_ACCELERATOR", "")
    if forced:
        return "cpu" if forced == "cpu" else "cuda"
    return "cuda" if local_devices(environ, dev) else "cpu"


def local_devices(environ: Mapping[str, str], dev: Path = Path("/dev")) -> list[int] | list[str]:
    """The devices CUDA would show here: every GPU of the machine, or those CUDA_VISIBLE_DEVICES names.

    Names that are no numbers (`GPU-8f…`, `MIG-…`) come back as they are.
    """
    present = installed_devices(dev)
    names = visible_devices(environ)
    if names is None or not present:
        return list(range(present))
    if all(name.isdigit() for name in names):
        return [int(name) for name in names if int(name) < present]
    return names


def visible_devices(environ: Mapping[str, str]) -> list[str] | None:
    """CUDA_VISIBLE_DEVICES as a list; None when it is not set. CUDA stops reading at the first -1."""
    text = environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    return names[: names.index("-1")] if "-1" in names else names


def installed_devices(dev: Path = Path("/dev")) -> int:
    """NVIDIA's driver makes one /dev/nvidia<number> for every GPU this process may see."""
    return sum(1 for entry in dev.glob("nvidia*") if re.fullmatch(r"nvidia\d+", entry.name))
