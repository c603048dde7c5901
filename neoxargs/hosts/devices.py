"""Detection of this machine's GPUs from device files, without importing torch, which would take seconds."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Literal

Device = Literal["cuda", "cpu"]


def device(environ: Mapping[str, str], dev: Path = Path("/dev")) -> Device:
    """Return the device that local ranks compute on; `DS_ACCELERATOR` overrides the detection, as in DeepSpeed."""
    forced = environ.get("DS_ACCELERATOR", "")
    if forced:
        return "cpu" if forced == "cpu" else "cuda"
    return "cuda" if local_devices(environ, dev) else "cpu"


def local_devices(environ: Mapping[str, str], dev: Path = Path("/dev")) -> list[int] | list[str]:
    """Return the devices visible to CUDA: all GPUs of this machine, or those in CUDA_VISIBLE_DEVICES.

    If an entry of CUDA_VISIBLE_DEVICES is not a number (`GPU-8f…`, `MIG-…`), all entries are returned as strings.
    """
    present = installed_devices(dev)
    names = visible_devices(environ)
    # Without device files there are no GPUs, whatever CUDA_VISIBLE_DEVICES says.
    if names is None or not present:
        return list(range(present))
    if not all(name.isdigit() for name in names):
        return names
    # CUDA stops reading at the first number without a GPU, as at -1.
    return list(takewhile(lambda number: number < present, map(int, names)))


def visible_devices(environ: Mapping[str, str]) -> list[str] | None:
    """Return the entries of CUDA_VISIBLE_DEVICES up to the first -1, where CUDA stops reading; None if not set."""
    text = environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    return names[: names.index("-1")] if "-1" in names else names


def installed_devices(dev: Path = Path("/dev")) -> int:
    """Return the number of NVIDIA GPUs; the driver creates a file /dev/nvidia<number> for each."""
    return sum(1 for entry in dev.glob("nvidia*") if re.fullmatch(r"nvidia\d+", entry.name))


def gpu_models(folder: Path = Path("/proc/driver/nvidia/gpus")) -> set[str]:
    """Return the models of this machine's GPUs, such as `NVIDIA A100-SXM4-80GB`, as the driver names them."""
    found = set()
    for file in folder.glob("*/information"):
        with suppress(OSError):
            found |= set(re.findall(r"^Model:\s*(.+?)\s*$", file.read_text(errors="replace"), re.M))
    return found


def host_memory() -> int:
    """Return the bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
