"""The GPUs of this machine, as nvidia-smi names them."""

from __future__ import annotations

import subprocess
from dataclasses import replace

from neoxargs.hosts.device_table import Device, reported_device, unknown_device
from neoxargs.hosts.hosts import Resources, own_names

QUERY = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")


def local_gpu(resources: Resources) -> Device | None:
    """Return the smallest GPU of this machine in the run; None if the run uses none, or without nvidia-smi.

    The GPUs are taken to be numbered as by nvidia-smi.
    """
    used = [slot for host, slots in resources.hosts.items() if host in own_names() for slot in slots]
    if not used and not resources.remote:
        used = next(iter(resources.hosts.values()))  # with a single host, the ranks run here whatever its name is
    if resources.device != "cuda" or not used:
        return None
    try:
        # with a time limit, because nvidia-smi can hang when a driver fails
        answer = subprocess.run(QUERY, capture_output=True, text=True, timeout=10, check=True).stdout
        rows = [(int(mebibytes), name) for name, _, mebibytes in (line.rpartition(",") for line in answer.splitlines())]
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    own = [rows[slot] for slot in used if slot < len(rows)]
    if not own:
        return None
    mebibytes, name = min(own)
    return replace(reported_device(name) or unknown_device(), memory=mebibytes * 2**20)
