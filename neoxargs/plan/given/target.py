"""The device and host for which a plan is made: a named device, this machine's CPU, or a GPU of unknown memory."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace

from neoxargs.base.problems import Problem, Problems
from neoxargs.base.record import Record
from neoxargs.base.text import GIB
from neoxargs.config.config import Config
from neoxargs.hosts.device_table import DEVICES, Device, find_device, reported_device, unknown_device
from neoxargs.hosts.devices import host_memory
from neoxargs.hosts.hosts import Resources, own_names
from neoxargs.plan.given.assumptions import DEFAULT, Assumptions, with_changes
from neoxargs.plan.given.options import PlanOptions
from neoxargs.plan.given.rates import Rates, beside, read_rates
from neoxargs.runs.run_spec import RunSpec
from neoxargs.runs.summary import MAX_GPUS_PER_MACHINE

QUERY = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
#: The first generation of GPUs whose tensor cores multiply matrices in bf16: A100.
BF16_GENERATION = 8


class Target(Record):
    """A kind of device and its host."""

    device: Device
    host_memory: int | None = None
    """Memory of one host, in bytes; if None, an amount per device is assumed."""
    zero_init: bool = True
    """Whether a ZeRO-3 model is partitioned while it is built, as in our train.py, rather than afterwards."""
    assumed: Assumptions = DEFAULT
    named: str = ""
    """The value of --device; empty if it is not given."""
    price: float | None = None
    """Of one device for an hour."""
    rates: Rates | None = None
    """What was learned about this kind of device from the user's own runs."""

    def warnings(self, config: Config) -> list[Problem]:
        """Return warnings about a configuration on this device."""
        if self.device.generation >= BF16_GENERATION:
            from neoxargs.checks.machine.hardware import fp16_beside_bf16, fp32_without_tf32

            found = [*fp32_without_tf32(config, self.device.kind)]
            if self.named and self.device.kind == "cuda":
                found += fp16_beside_bf16(config, [self.device.name])
            return found
        if config.precision.precision != "bfloat16":
            return []
        what = f"{self.device.name} has no tensor cores for bf16, so with precision bfloat16, the run will be far "
        what += "slower than planned"
        hint = "set precision to fp16 to reach the planned speed"
        return [Problem(what, config.place("precision"), hint, id="no-bf16-tensor-cores").as_warning()]


def choose_target(options: PlanOptions, spec: RunSpec) -> Target:
    """Return the device and host to plan for. Raises Problems if a named device or assumption is unknown."""
    device = choose_device(options, spec)
    is_local = device.kind == "cpu" and not options.device
    memory = int(options.host_memory * GIB) if options.host_memory else host_memory() if is_local else None
    if options.gpu_memory:
        device = replace(device, memory=int(options.gpu_memory * GIB))
    if options.network:
        device = replace(device, network=options.network)
    rates = _rates(options, device)
    unfused = ["unfused_attention=1"] if options.attention == "unfused" else []
    assumed = with_changes([*unfused, *options.assume], rates.values if rates else None)
    return Target(device, memory, not options.built_whole, assumed, options.device or "", options.price, rates)


def _rates(options: PlanOptions, device: Device) -> Rates | None:
    """Return the rates of a device that are given or lie beside a file. Raises Problems."""
    path = options.rates or (None if options.texts else beside(options.files, options.directory))
    rates = read_rates(path) if path else None
    if rates is None or rates.device == device.name:
        return rates
    if not options.rates:
        return None
    what = f"--rates {path} has the rates of {rates.device}, and the plan is for {device.name}"
    hint = f"add --device {rates.device}, or remove --rates"
    raise Problems(Problem(what, hint=hint, id="rates-of-another-device"))


def choose_device(options: PlanOptions, spec: RunSpec) -> Device:
    """Return the named device; else this machine's GPU, or its CPU if the run suits one; else an unknown GPU."""
    if options.device:
        return find_device(options.device)
    if options.gpu_memory:
        return unknown_device()
    return local_cpu(spec) or local_gpu(spec.resources) or unknown_device()


def local_cpu(spec: RunSpec) -> Device | None:
    """Return this machine's CPU if the run is for one: in fp32, on no more ranks than a machine has GPUs or cores."""
    ranks, cores = spec.resources.gpus, os.cpu_count() or 1
    in_half = spec.config.precision.precision != "fp32"
    if spec.resources.device == "cuda" or in_half or ranks > max(MAX_GPUS_PER_MACHINE, cores):
        return None
    return cpu(ranks, cores)


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


def cpu(ranks: int, cores: int) -> Device:
    """Return the share of a machine's CPU that one rank gets: its threads, or less with more ranks than cores."""
    # DEVICES["CPU"] has the rates of one core.
    share, core = (cores // ranks or cores / ranks), DEVICES["CPU"]
    return replace(core, half=core.half * share, single=core.single * share)
