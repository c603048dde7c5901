"""Before a launch: does the plan fit the devices of this machine? Asked only where their memory is known."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

from neoxargs.launch.run_spec import RunSpec, resolve_run
from neoxargs.launch.script import Script
from neoxargs.problems import Problem, Problems, render
from neoxargs.request import Request
from neoxargs.tools.plan.advice import suggest_changes
from neoxargs.tools.plan.assumptions import USABLE
from neoxargs.tools.plan.devices import ASSUMED_DEVICE, DEVICES, UNKNOWN_NAME, Device, find_device
from neoxargs.tools.plan.output.wording import verdict
from neoxargs.tools.plan.plan import Plan, make_plan
from neoxargs.tools.plan.target import Target

#: The program whose memory is known, because what it allocates is.
PLANNED = "train"
MEMORY_QUERY = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
MAX_SUGGESTIONS = 2


def refuse_what_cannot_fit(script: Script, spec: RunSpec, request: Request, device: str | None) -> None:
    """Raises Problems if a run of our trainer cannot fit, even were the estimate as much too high as it may be.

    Warns where it is only close. device: what the GPUs are, where somebody names them; else this machine is asked.
    """
    named = find_device(device) if device else None
    plan = _plan_here(spec, named or _local_gpu(spec)) if script.program == PLANNED else None
    if plan is None or plan.fits:
        return
    suggestions = suggest_changes(plan, lambda changes: resolve_run(request.overriding(changes), os.environ))
    changes = [" ".join(f"--set {one}" for one in found.overrides) for found in suggestions]
    problem = Problem(f"the run {verdict(plan)}", hint=_hint(changes[:MAX_SUGGESTIONS]), id="plan-does-not-fit")
    if _surely_too_large(plan):
        raise Problems([problem])
    print(render([problem.as_warning()]), file=sys.stderr)


def _plan_here(spec: RunSpec, device: Device | None) -> Plan | None:
    """None where the device's memory is not known, or a plan is of one run and this is a search."""
    if device is None or device.memory is None:
        return None
    try:
        return make_plan(spec, Target(device))
    except Problems:
        return None


def _surely_too_large(plan: Plan) -> bool:
    memory = plan.target.device.memory
    return memory is not None and plan.fullest.peak * USABLE > memory


def _hint(changes: Sequence[str]) -> str:
    would_fit = f"this would fit: {' or '.join(changes)}; " if changes else ""
    return f"{would_fit}--force starts it all the same"


def _local_gpu(spec: RunSpec) -> Device | None:
    """The smallest GPU of this machine, if the run uses it."""
    resources = spec.resources
    away = resources.remote and not {os.uname().nodename, "localhost", "127.0.0.1"} & set(resources.hosts)
    if resources.device != "cuda" or away:
        return None
    try:
        answer = subprocess.run(MEMORY_QUERY, capture_output=True, text=True, timeout=10, check=True).stdout
        mebibytes = [int(line) for line in answer.split()]
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return replace(DEVICES[ASSUMED_DEVICE], name=UNKNOWN_NAME, memory=min(mebibytes) * 2**20) if mebibytes else None
