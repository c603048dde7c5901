"""The memory check before a launch: refuse a run whose plan does not fit on devices of known memory."""

from __future__ import annotations

import os
from collections.abc import Sequence

from neoxargs.base.problems import Problem, Problems, report
from neoxargs.base.programs import Script
from neoxargs.base.request import Request
from neoxargs.hosts.device_table import Device, find_device
from neoxargs.plan.advice.smaller import suggest_changes
from neoxargs.plan.estimate import Plan, make_plan
from neoxargs.plan.given.local_gpu import local_gpu
from neoxargs.plan.given.target import Target
from neoxargs.plan.output.wording import NOTHING_FITS, verdict
from neoxargs.runs.run_spec import RunSpec, complete_run

#: The only program that is checked, because a plan counts the allocations of train.py.
PLANNED_PROGRAM = "train"
MAX_SUGGESTIONS = 2
#: A run is refused only if it would not fit even if the estimate is this share too high.
ERROR = 0.05


def check_memory(script: Script, spec: RunSpec, request: Request, device: str | None) -> None:
    """Raise Problems if train.py cannot fit even when the estimate is 5 % too high; warn if it fits only then.

    device: the name of the GPUs, from --device; if None, nvidia-smi is asked for the memory of this machine's GPUs.
    """
    named = find_device(device) if device else None
    plan = _plan_for(spec, named or local_gpu(spec.resources)) if script.program == PLANNED_PROGRAM else None
    if plan is None or plan.fits:
        return
    assert spec.draft
    draft = spec.draft
    suggestions = suggest_changes(
        plan, lambda changes: complete_run(draft.with_values(changes), os.environ, request.gpus)
    )
    changes = [" ".join(f"--set {override}" for override in change.overrides) for change in suggestions]
    problem = Problem(f"the run {verdict(plan)}", hint=_hint(changes[:MAX_SUGGESTIONS]), id="plan-does-not-fit")
    memory = plan.target.device.memory
    if memory is not None and plan.fullest.peak * (1 - ERROR) > memory:
        raise Problems([problem])
    report([problem.as_warning()])


def _plan_for(spec: RunSpec, device: Device | None) -> Plan | None:
    """Return the plan, or None if the device's memory is unknown or the autotuner will start several runs."""
    if device is None or device.memory is None:
        return None
    try:
        return make_plan(spec, Target(device))
    except Problems:
        return None


def _hint(changes: Sequence[str]) -> str:
    compared = " (deepy plan --search compares all layouts)"
    instead = f"to make the run fit, add {', or '.join(changes)}{compared}" if changes else NOTHING_FITS
    return f"{instead}; to start the run anyway, add --force"
