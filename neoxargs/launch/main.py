"""`deepy train.py FILE ...`: start a run; or only print what would be started, or what its hosts have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack

from neoxargs.base.problems import Problems, has_errors, report
from neoxargs.base.record import replace
from neoxargs.base.request import Request
from neoxargs.checks import all as checks
from neoxargs.checks.machine import other_hosts, secrets
from neoxargs.hosts.assumed import missing_hostfile
from neoxargs.launch.output import sbatch
from neoxargs.launch.output.dry_run import Form, dry_run, emit, to_json
from neoxargs.launch.stages import Name, Stage, State, find_problems, launch_of, run_until, say
from neoxargs.processes import interrupts
from neoxargs.targets.megatron_unsupported import dropped_settings


def run(request: Request, others: Mapping[Name, Stage]) -> int:
    """Start a run and return its exit code; raises Problems. others: stages of the caller, see `run_until`."""
    interrupts.raise_on_sigterm()  # until the ranks run, and between attempts
    with ExitStack() as held:
        return run_until("start", replace(launch_of(request), held=held), others).code


def show(request: Request, form: Form | None) -> int:
    """Print what would be started (`--dry-run`), or one form of it (`--emit`); returns the exit code."""
    launch = launch_of(request, _subjects_of_what_is_shown(request, form))
    others = {*launch.subjects}.difference(checks.OF_VALUES)
    state = run_until("command", replace(launch, lenient=others))
    spec = state.spec
    refused = find_problems(replace(state, subjects=checks.OF_VALUES)).problems
    needs = find_problems(replace(state, subjects=others, lenient=())).problems
    if any(secrets.in_configuration(spec.config)):  # before anything shows their values
        raise Problems([*refused, *(need.as_warning() for need in needs)])
    left_out = dropped_settings(spec.config) if form == "megatron" else []
    if form in ("command", "runner"):
        left_out += missing_hostfile(spec.config, spec.resources)
    warnings = [*spec.warnings, *left_out, *(need.as_warning() for need in needs)]
    if request.as_json and not form:
        assert state.command
        listed = [problem.to_json() for problem in (*warnings, *refused)]
        answer = {"ok": not has_errors(refused), "problems": listed, **to_json(spec.config, state.command)}
        print(json.dumps(answer, indent=2))
    else:
        report([*warnings, *refused])
        print(_shown(state, form))
        errors = dict.fromkeys(need.id for need in needs if need.severity == "error")
        if errors and not form and request.gpus is None:  # a dry run succeeds, because it may be for another machine
            what = "on this machine, the run would not start; these warnings would be errors"
            say(f"{what}: {', '.join(errors)}")
    return int(has_errors(refused))


def check_hosts(request: Request) -> int:
    """Print what every host has (`--check-hosts`); raises Problems if a host lacks something."""
    spec = run_until("resolve", launch_of(request)).spec
    table, problems = other_hosts.check_hosts(spec)
    print(table, flush=True)
    report(spec.resources.warnings)
    if problems:
        raise Problems(problems)
    say(other_hosts.what_was_checked(spec))
    return 0


def _subjects_of_what_is_shown(request: Request, form: Form | None) -> list[checks.Subject]:
    """Return what this machine is checked for: not for packages if another one is assumed, nor if nothing is started.

    The batch script of `--emit sbatch`, and the flags of other programs, do not contain the launcher's command.
    """
    left_out = {"trainer"} if request.gpus is not None else set()
    left_out |= {"command"} if form not in (None, "command", "runner") else set()
    return [subject for subject in checks.HERE if subject not in left_out]


def _shown(state: State, form: Form | None) -> str:
    from neoxargs.runs.summary import to_text

    config, resources = state.spec.config, state.spec.resources
    if form == "sbatch":
        return sbatch.script(config, resources, state.request)
    if form == "command":
        return str(state.command)
    if form:
        return emit(form, config, resources)
    assert state.command
    return f"{to_text(state.spec)}\n\n{dry_run(config, resources, state.command)}"
