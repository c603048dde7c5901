"""What a plan is made for: the device that is named, this machine's CPU, or a GPU of unknown memory."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from neoxargs.launch.report.summary import MAX_GPUS_PER_MACHINE
from neoxargs.launch.run_spec import RunSpec
from neoxargs.text import GIB
from neoxargs.tools.plan.devices import DEVICES, Device, find_device, unknown_device
from neoxargs.tools.plan.options import PlanOptions


@dataclass(frozen=True)
class Target:
    """A kind of device, and the host around it."""

    device: Device
    host_memory: int | None = None
    """Bytes of one host; None: HOST_MEMORY_PER_GPU for each of its devices."""
    zero_init: bool = True
    """Whether a ZeRO-3 model is partitioned while it is built (as our train.py does) or only afterwards."""


def choose_target(options: PlanOptions, spec: RunSpec) -> Target:
    """Raises Problems for a device that is not known."""
    device = choose_device(options, spec)
    host_memory = int(options.host_memory * GIB) if options.host_memory else _own_memory(options, device)
    if options.gpu_memory:
        device = replace(device, memory=int(options.gpu_memory * GIB))
    return Target(device, host_memory, not options.built_whole)


def choose_device(options: PlanOptions, spec: RunSpec) -> Device:
    """The one that is named; a machine without GPUs is planned as what it is, unless the run is meant for GPUs."""
    if options.device:
        return find_device(options.device)
    if spec.resources.device == "cpu" and options.gpu_memory is None and not _meant_for_gpus(spec):
        return _cpu(spec.resources.gpus)
    return unknown_device()  # and no verdict without a memory to hold it against


def _meant_for_gpus(spec: RunSpec) -> bool:
    """Nobody computes in 16 bits on a CPU, or starts more ranks on one machine than it could have GPUs or has cores."""
    most = max(MAX_GPUS_PER_MACHINE, os.cpu_count() or 1)
    return spec.config.precision.precision != "fp32" or spec.resources.gpus > most


def _own_memory(options: PlanOptions, device: Device) -> int | None:
    """Bytes of this machine, where the run would be on its CPU."""
    if options.device or device.kind != "cpu":
        return None
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cpu(ranks: int) -> Device:
    """One rank's part of this machine, whose cores are divided among more ranks than there are."""
    part, core = min(1.0, (os.cpu_count() or 1) / ranks), DEVICES["CPU"]
    return replace(core, half=core.half * part, single=core.single * part)
