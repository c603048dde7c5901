"""`deepy check`: print all problems of a configuration, or `ok` and a summary of the run."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from neoxargs.launch import preflight
from neoxargs.launch.preflight.data_files import certainly_missing
from neoxargs.launch.report import summary
from neoxargs.launch.run_spec import RunSpec, resolve_run
from neoxargs.problems import Problem, Problems, report
from neoxargs.request import Request
from neoxargs.resolve.derive import Unresolved
from neoxargs.resolve.trainer_support.unsupported import plugin_value_problems, trainer_problems
from neoxargs.resolve.yaml.read import read_files


def run(request: Request) -> int:
    """Print the problems on stderr, or `ok` and a summary on stdout, and return the exit code."""
    spec, problems = find_problems(request)
    failed = any(problem.severity == "error" for problem in problems)
    if failed:
        problems = [*problems, *_migrate_suggestion(request)]
    if request.as_json:
        print(json.dumps(_to_json(spec, problems, not failed), indent=2))
        return int(failed)
    if problems:
        report(problems)
    if spec and not failed:
        print("\n".join(["ok", *summary.brief_lines(spec)]))
    return int(failed)


def _migrate_suggestion(request: Request) -> list[Problem]:
    """Return a warning if the only file is one that `deepy migrate` converts, such as a DeepSpeed JSON."""
    from neoxargs.tools.migrate import source_of  # imported late, to keep a check without errors fast

    try:
        text, *others = read_files(request.files, request.directory)
    except Problems:
        return []
    source = source_of(text)
    if others or source.edits_in_place or not text.text.strip():
        return []
    what, hint = f"{request.files[0]} looks like {source.describes}", f"run `deepy migrate {text.name}` to convert it"
    return [Problem(what, hint=hint, severity="warning", id="file-of-another-program")]


def find_problems(request: Request) -> tuple[RunSpec | None, list[Problem]]:
    """Return the resolved run (None if it cannot be resolved) and all errors and warnings.

    With `--gpus`, the run is for another machine, so missing files and programs are only warnings.
    """
    try:
        spec = resolve_run(request, os.environ)
    except Unresolved as stop:
        certain = [
            *trainer_problems(stop.certain),
            *([] if request.gpus else certainly_missing(stop.certain, stop.broken)),
        ]
        return None, [*stop.problems, *certain]
    except Problems as stop:
        return None, stop.problems
    if request.gpus:
        problems = [problem.as_warning() for problem in preflight.machine_problems(spec)]
    else:
        problems = preflight.training_problems(spec)
    added_values = map(Problem.as_warning, plugin_value_problems(spec.config))
    return spec, [*spec.warnings, *problems, *trainer_problems(spec.config), *added_values]


def _to_json(spec: RunSpec | None, problems: Sequence[Problem], ok: bool) -> dict[str, Any]:
    answer: dict[str, Any] = {"ok": ok, "problems": [problem.to_json() for problem in problems]}
    return answer | (summary.to_json(spec) if spec else {})
