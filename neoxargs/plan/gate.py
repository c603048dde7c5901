"""The plan of a launch: refuse a run that does not fit on devices of known memory; tell the ranks the planned time."""

from __future__ import annotations

import os

from neoxargs.base.problems import Problem, Problems, report
from neoxargs.base.programs import Script
from neoxargs.base.record import replace
from neoxargs.base.request import Request
from neoxargs.hosts.device_table import UNKNOWN_NAME, Device, find_device
from neoxargs.hosts.devices import device as device_kind
from neoxargs.hosts.devices import local_devices
from neoxargs.plan.advice.smaller import suggest_changes
from neoxargs.plan.estimate import Plan, make_plan
from neoxargs.plan.given.assumptions import DEFAULT, Assumptions
from neoxargs.plan.given.placement import on_hosts
from neoxargs.plan.given.rates import Rates, beside, read_rates
from neoxargs.plan.given.target import Target, local_cpu, local_gpu
from neoxargs.plan.output.wording import NOTHING_FITS, verdict
from neoxargs.runs.run_spec import RunSpec, complete_run
from neoxargs.targets.planned import Planned

#: The only program that is checked, because a plan counts the allocations of train.py.
PLANNED_PROGRAM = "train"
MAX_SUGGESTIONS = 2
#: A run is refused only if it would not fit even if the estimate is this share too high.
ERROR = 0.05


def check_memory(
    script: Script, spec: RunSpec, request: Request, device: str | None, force: bool = False
) -> Planned | None:
    """Return the planned time of a step of train.py; None if the devices are not known.

    Raise Problems if the run cannot fit even when the estimate is 5 % too high; warn if it fits only then.
    device: the name of the GPUs, from --device; if None, nvidia-smi is asked for this machine's GPUs. force: start in
    any case.
    """
    named = find_device(device) if device else None
    if script.program != PLANNED_PROGRAM:
        return None
    plan = _plan_for(spec, named or local_gpu(spec.resources), request)
    if plan and not plan.fits and not force:
        _refuse(plan, request)
    return _planned(plan)


def planned_on_rank(script: Script, spec: RunSpec, request: Request, device: str | None) -> Planned | None:
    """Return the planned time of a step as `check_memory`, on a rank that another launcher has started.

    Each host is taken to have as many devices as this one.
    """
    if script.program != PLANNED_PROGRAM:
        return None
    kind = device_kind(os.environ)
    gpu = find_device(device) if device else local_gpu(replace(spec.resources, device=kind))
    slots = len(local_devices(os.environ)) if kind == "cuda" else spec.resources.gpus
    return _planned(_plan_for(on_hosts(spec, kind, max(1, slots)), gpu, request))


def _rates(request: Request) -> Rates | None:
    """Return the rates beside a file of the configuration; a file that cannot be read is warned of."""
    path = beside(request.files, request.directory)
    try:
        return read_rates(path) if path else None
    except Problems as stop:
        report([problem.as_warning() for problem in stop.problems])
        return None


def _plan_for(spec: RunSpec, gpu: Device | None, request: Request) -> Plan | None:
    """Return the plan for these GPUs, or else this machine's CPU; None if the autotuner will start several runs."""
    rates = _rates(request)
    # Without the rates of this machine, the plan of a CPU is that of another one.
    device = gpu or (local_cpu(spec) if rates else None)
    if device is None:
        return None
    own = rates if rates and rates.device == device.name else None
    try:
        return make_plan(spec, Target(device, assumed=Assumptions(**own.values) if own else DEFAULT, rates=own))
    except Problems:
        return None


def _planned(plan: Plan | None) -> Planned | None:
    """Return what the ranks compare their steps with; None if the devices are not known."""
    if plan is None or plan.target.device.name == UNKNOWN_NAME:
        return None
    speed, rates = plan.speed, plan.target.rates
    if plan.target.device.kind == "cpu" and not rates:
        return None
    parts = {
        "compute": speed.compute, "messages": speed.tensor + speed.pipe + speed.data + speed.experts + speed.context,
        "bubble": speed.bubble, "optimizer": speed.optimizer, "other losses": speed.lost,
    }  # fmt: skip
    spent = {name: seconds for name, seconds in parts.items() if seconds}
    return Planned(plan.target.device.name, speed.tokens, plan.time_error, spent, rates.path if rates else "")


def _refuse(plan: Plan, request: Request) -> None:
    """Raise Problems if the run cannot fit even when the estimate is 5 % too high; otherwise warn."""
    draft = plan.spec.draft
    assert draft
    suggestions = suggest_changes(
        plan, lambda changes: complete_run(draft.with_values(changes), os.environ, request.gpus)
    )
    few = suggestions[:MAX_SUGGESTIONS]
    changes = [" ".join(f"--set {override}" for override in change.overrides) for change in few]
    compared = " (deepy plan --search compares all layouts)"
    instead = f"to make the run fit, add {', or '.join(changes)}{compared}" if changes else NOTHING_FITS
    hint = f"{instead}; to start the run anyway, add --force"
    problem = Problem(f"the run {verdict(plan)}", hint=hint, id="plan-does-not-fit")
    memory = plan.target.device.memory
    if memory is not None and plan.fullest.peak * (1 - ERROR) > memory:
        raise Problems([problem])
    report([problem.as_warning()])
