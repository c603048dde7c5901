"""The first stages of a launch, which `deepy check` and `--dry-run` share: resolve a run, and find every problem."""

from __future__ import annotations

import os

from neoxargs.base.problems import Problem, Problems
from neoxargs.base.programs import Script
from neoxargs.base.record import replace
from neoxargs.base.request import Request
from neoxargs.checks import all as preflight
from neoxargs.checks.data.files import certainly_missing
from neoxargs.checks.machine import secrets
from neoxargs.checks.trainer import plugin_value_problems
from neoxargs.launch.start.prepare import with_launch, with_text
from neoxargs.resolve.derive import Unresolved
from neoxargs.runs.run_spec import RunSpec, resolve_run


def resolve_launch(script: Script, request: Request, commit: str | None = None, checking: bool = False) -> RunSpec:
    """Resolve a run and add the values that only a launch sets; raises Problems with all that can be found.

    commit: that of the working directory. checking: whether the script may become another one, as for `deepy check`.
    """
    try:
        spec = resolve_run(request, os.environ)
    except Unresolved as stop:
        # What can be checked without the broken values is reported together with them.
        found = [*secrets.in_configuration(stop.certain), *preflight.refused_values(script.program, stop.certain)]
        plugins = list(plugin_value_problems(stop.certain)) if script.program else []
        found += map(Problem.as_warning, plugins) if checking else plugins
        if script.program == "train" and request.gpus is None:
            found += certainly_missing(stop.certain, stop.broken)
        raise Problems([*stop.problems, *found]) from None
    return replace(spec, config=with_text(with_launch(spec.config, script.path, spec.texts, commit)))
