"""Before a launch: does the plan fit the devices of this machine? Asked only where their memory is known."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from neoxargs.launch.run_spec import RunSpec, resolve_run
from neoxargs.problems import Problem, Problems, render
from neoxargs.tools.plan.advice import suggestions
from neoxargs.tools.plan.assumptions import USABLE
from neoxargs.tools.plan.devices import DEVICES, UNNAMED, USUAL, Device, named
from neoxargs.tools.plan.output.wording import verdict
from neoxargs.tools.plan.plan import Plan, Target, plan

#: Whose memory is known, because what it allocates is.
TRAINER = "train.py"
ASK = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")


def refuse(
    script: str, files: Sequence[str], overrides: Sequence[str], directory: str | None, device: str | None
) -> None:
    """Raises Problems if a run of our trainer cannot fit, even were the estimate as much too high as it may be.

    Warns where it is only close. Mistakes in the configuration are left to the launch, which tells all of them.
    """
    known = named(device) if device else None
    if Path(script).name != TRAINER or not (known or shutil.which(ASK[0])):
        return

    def with_changes(changes: Sequence[str]) -> RunSpec:
        names = {change.partition("=")[0] for change in changes}
        kept = [given for given in overrides if given.partition("=")[0] not in names]
        return resolve_run(files, [*kept, *changes], directory, os.environ)

    try:
        here = with_changes([])
        known = known or _own(here)
        if known is None or known.memory is None:
            return
        made = plan(here, Target(known))
    except Problems:
        return
    if made.fits:
        return
    instead = " or ".join(
        " ".join(f"--set {one}" for one in found.overrides) for found in suggestions(made, with_changes)[:2]
    )
    problem = Problem(f"the run {verdict(made)}", hint=_hint(instead))
    if _cannot(made):
        raise Problems([problem])
    print(render([replace(problem, severity="warning")]), file=sys.stderr)


def _cannot(made: Plan) -> bool:
    memory = made.target.device.memory
    return memory is not None and made.worst.peak * USABLE > memory


def _hint(instead: str) -> str:
    return f"this would fit: {instead}; --force starts it all the same" if instead else "--force starts it all the same"


def _own(spec: RunSpec) -> Device | None:
    """The smallest GPU of this machine, if the run uses it."""
    resources = spec.resources
    away = resources.remote and not {os.uname().nodename, "localhost", "127.0.0.1"} & set(resources.hosts)
    if resources.device != "cuda" or away:
        return None
    try:
        told = subprocess.run(ASK, capture_output=True, text=True, timeout=10, check=True).stdout
        mebibytes = [int(line) for line in told.split()]
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return replace(DEVICES[USUAL], name=UNNAMED, memory=min(mebibytes) * 2**20) if mebibytes else None
