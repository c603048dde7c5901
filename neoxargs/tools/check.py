"""`deepy check`: every problem of a configuration at once, or ok and what the run would be."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from neoxargs.launch import preflight
from neoxargs.launch.preflight.checkpoints import overwritten
from neoxargs.launch.preflight.data_files import certain_files
from neoxargs.launch.preflight.disk_space import refused
from neoxargs.launch.report import summary
from neoxargs.launch.run_spec import RunSpec, resolve_run
from neoxargs.problems import Problem, Problems, render
from neoxargs.resolve.derive import Unresolved
from neoxargs.resolve.trainer_support.unsupported import plugin_value_problems, unsupported
from neoxargs.resolve.yaml.read import read_files


def report(
    files: Sequence[str], overrides: Sequence[str], directory: str | None, gpus: int | None, as_json: bool
) -> int:
    """Print what is wrong (on stderr) or ok with the facts; returns the exit code."""
    spec, problems = examined(files, overrides, directory, gpus)
    failed = any(problem.severity == "error" for problem in problems)
    if failed and len(files) == 1:
        problems = [*problems, *_of_another_program(files[0], directory)]
    if as_json:
        print(json.dumps(_facts(spec, problems, not failed), indent=2))
        return int(failed)
    if problems:
        print(render(problems), file=sys.stderr)
    if spec and not failed:
        print("\n".join(["ok", *summary.brief(spec)]))
    return int(failed)


def _of_another_program(path: str, directory: str | None) -> list[Problem]:
    """Told of a script or a DeepSpeed JSON that stands alone: it can be made into a configuration."""
    from neoxargs.tools.migrate import guessed  # only a mistake needs it

    try:
        (text,) = read_files([path], directory)
    except Problems:
        return []
    program = {"megatron": "a script that starts Megatron-LM", "deepspeed": "DeepSpeed's JSON"}.get(guessed(text))
    if program is None or not text.text.strip() or text.name.endswith((".yml", ".yaml")):
        return []
    return [Problem(f"{path} reads like {program}", hint=f"deepy migrate {text.name}", severity="warning")]


def examined(
    files: Sequence[str], overrides: Sequence[str], directory: str | None, gpus: int | None
) -> tuple[RunSpec | None, list[Problem]]:
    """The configuration, if it has come to one, and everything there is to say about it.

    With `gpus` another machine is meant, which may have the files. That a run has been here is no fault of the
    configuration: it may be continued.
    """
    try:
        spec = resolve_run(files, overrides, directory, os.environ, gpus)
    except Unresolved as stop:
        certain = [*unsupported(stop.certain), *([] if gpus else certain_files(stop.certain, stop.broken))]
        return None, [*stop.problems, *certain]
    except Problems as stop:
        return None, stop.problems
    if gpus:
        problems = [_as_warning(problem) for problem in preflight.files(spec)]
    else:
        problems = [
            *preflight.files(spec),
            *map(_as_warning, [*overwritten(spec.config), *refused(spec.config, "save")]),
        ]
    added_values = map(_as_warning, plugin_value_problems(spec.config))
    return spec, [*spec.warnings, *problems, *unsupported(spec.config), *added_values]


def _as_warning(problem: Problem) -> Problem:
    return replace(problem, severity="warning")


def _facts(spec: RunSpec | None, problems: Sequence[Problem], ok: bool) -> dict[str, Any]:
    facts: dict[str, Any] = {"ok": ok, "problems": [problem.to_json() for problem in problems]}
    return facts | (summary.facts(spec) if spec else {})
