"""One `deepy train.py FILE ...`: resolve, check, say what will happen, prepare, start; or only show it.

The order is the one in which mistakes get dearer.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

from neoxargs.launch import preflight
from neoxargs.launch.cluster import check_hosts as host_checks
from neoxargs.launch.cluster import sbatch
from neoxargs.launch.cluster.rendezvous import free_port
from neoxargs.launch.launchers.command import command
from neoxargs.launch.preflight import launcher as launcher_checks
from neoxargs.launch.preflight import secrets
from neoxargs.launch.preflight.data_files import certainly_missing
from neoxargs.launch.prepare import compile_ops, tokenise, with_launch, with_text, write_record
from neoxargs.launch.processes import failures
from neoxargs.launch.processes.run import start
from neoxargs.launch.report.dry_run import Form, dry_run, emit, to_json
from neoxargs.launch.run_spec import RunSpec, resolve_run
from neoxargs.launch.script import Script, find_script
from neoxargs.launch.targets.megatron_unsupported import dropped_settings
from neoxargs.problems import Problem, Problems, render
from neoxargs.request import Request
from neoxargs.resolve.derive import Unresolved

#: Raises Problems where a run cannot fit the devices that it would run on.
CheckMemory = Callable[[Script, RunSpec], None]


def run(request: Request, check_memory: CheckMemory) -> int:
    """Start a run and wait for its end; returns the exit code, raises Problems before anything has started."""
    script = find_script(request.script)
    spec = resolve_launch(script, request)
    check_memory(script, spec)
    check_needs(script, spec)
    check_start(script, spec)
    announce(script, spec)
    return prepare(script, spec) or start_ranks(script, spec)


def show(request: Request, form: Form | None) -> int:
    """Print what would be started (`--dry-run`), or one of its forms (`--emit`)."""
    script = find_script(request.script)
    spec = resolve_launch(script, request)
    refused = preflight.unsupported(script.program, spec.config)
    needs = preflight.needs(script.program, spec)
    left_out = dropped_settings(spec.config) if form == "megatron" else []
    warnings = [*spec.warnings, *left_out, *(need.as_warning() for need in needs)]
    if request.as_json and not form:
        _print_json(script, spec, [*warnings, *refused], not has_errors(refused))
    else:
        warn([*warnings, *(problem.as_warning() for problem in refused)])
        print(_form(form, request, spec) if form else _everything(script, spec))
    return int(has_errors(refused))


def check_hosts(request: Request) -> int:
    """Ask every machine for what a run needs (`--check-hosts`); returns 1 if one lacks something."""
    table, problems = host_checks.check_hosts(resolve_launch(find_script(request.script), request))
    print(table)
    refuse(problems)
    return 0


# -- the stages ------------------------------------------------------------------------------------------------------


def resolve_launch(script: Script, request: Request) -> RunSpec:
    """The run, with what only a launch adds to its configuration; raises Problems."""
    try:
        spec = resolve_run(request, os.environ)
    except Unresolved as stop:
        missing = certainly_missing(stop.certain, stop.broken) if script.program == "train" else []
        raise Problems([*stop.problems, *preflight.unsupported(script.program, stop.certain), *missing]) from None
    return replace(spec, config=with_text(with_launch(spec.config, script.path, spec.texts)))


def check_needs(script: Script, spec: RunSpec) -> None:
    """What the script needs and cannot do."""
    problems = [*preflight.needs(script.program, spec), *preflight.unsupported(script.program, spec.config)]
    if has_errors(problems):
        raise Problems([*problems, *spec.warnings])
    warn(problems)


def check_start(script: Script, spec: RunSpec) -> None:
    """What the launcher needs; other machines are asked last, because that takes seconds."""
    config, resources = spec.config, spec.resources
    words = command(config, resources, script.path, os.environ).words
    refuse([*secrets.problems(config, resources, os.environ),
            *launcher_checks.problems(config, resources, script.path, words, os.environ)])  # fmt: skip
    refuse(host_checks.host_problems(config, resources))


def announce(script: Script, spec: RunSpec) -> None:
    """What will run, to be checked at a glance; sampling needs less than training."""
    from neoxargs.launch.report.summary import print_summary, ranks

    reads = {"generate": "sampling from", "eval": "evaluating"}.get(script.program or "")
    if reads:
        options = spec.config.checkpoint
        say(f"{reads} {options.load or options.save}; ranks: {ranks(spec.config, spec.resources)}")
        return
    print_summary(spec)
    warn(spec.warnings)


def prepare(script: Script, spec: RunSpec) -> int:
    """What is done once, before ranks that would each wait for it; returns the exit code of what failed, or 0."""
    config, resources = spec.config, spec.resources
    environ = command(config, resources, script.path, os.environ).environ(os.environ)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if script.program not in ("generate", "eval"):
        write_record(config)
    if script.program != "generate" and (failed := tokenise(config, environ)):
        return failed
    compile_ops(config, resources, environ, say)
    return 0


def start_ranks(script: Script, spec: RunSpec) -> int:
    """Start them and wait for their end; returns the exit code."""
    config, resources = spec.config, spec.resources
    attempt = failures.new_attempt(config)
    # a port is looked for last: the data may have taken hours
    launched = command(config, resources, script.path, os.environ, free_port(config, resources), attempt)
    return start(launched, os.environ, say, resources.remote, logs=failures.logs_folder(config, attempt))


# -- what is printed -------------------------------------------------------------------------------------------------


def say(text: str) -> None:
    """A line about the run that is not the run's own output."""
    print(f"deepy: {text}", file=sys.stderr, flush=True)


def warn(warnings: Sequence[Problem]) -> None:
    if warnings:
        print(render(warnings), file=sys.stderr, flush=True)


def refuse(problems: Sequence[Problem]) -> None:
    if problems:
        raise Problems(problems)


def has_errors(problems: Sequence[Problem]) -> bool:
    return any(problem.severity == "error" for problem in problems)


def _print_json(script: Script, spec: RunSpec, problems: Sequence[Problem], ok: bool) -> None:
    launched = command(spec.config, spec.resources, script.path, os.environ)
    answer = {"ok": ok, "problems": [problem.to_json() for problem in problems]}
    print(json.dumps(answer | to_json(spec.config, launched), indent=2))


def _form(form: Form, request: Request, spec: RunSpec) -> str:
    if form == "sbatch":
        return sbatch.script(spec.config, spec.resources, request)
    return emit(form, spec.config, spec.resources)


def _everything(script: Script, spec: RunSpec) -> str:
    from neoxargs.launch.report.summary import to_text

    launched = command(spec.config, spec.resources, script.path, os.environ)
    return f"{to_text(spec)}\n\n{dry_run(spec.config, spec.resources, launched, brief=sys.stdout.isatty())}"
