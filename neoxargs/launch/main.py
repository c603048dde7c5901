"""The stages of `deepy train.py FILE ...`: resolve, check, print a summary, prepare, start; or only print the launch.

Cheap checks come first: the later a stage, the more time an error in it costs.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import nullcontext

from neoxargs.base.problems import Problem, Problems, report
from neoxargs.base.programs import Script, find_script
from neoxargs.base.record import replace
from neoxargs.base.request import Request
from neoxargs.checks import all as preflight
from neoxargs.checks.checkpoint.model import loaded_checkpoint, other_data
from neoxargs.checks.machine import other_hosts as host_checks
from neoxargs.checks.machine import secrets
from neoxargs.config.config import Config
from neoxargs.files.run_record import write_record
from neoxargs.files.token_files.index import digest
from neoxargs.hosts.assumed import missing_hostfile
from neoxargs.launch import stages
from neoxargs.launch.command.command import command
from neoxargs.launch.output import sbatch
from neoxargs.launch.output.dry_run import Form, dry_run, emit, to_json
from neoxargs.launch.start.prepare import compile_ops, load_tasks, tokenise
from neoxargs.launch.start.restarts import continues_job, requeued, start_ranks
from neoxargs.processes import interrupts
from neoxargs.processes.run_lock import RunLock, lock_run, new_launch
from neoxargs.runs.fingerprints import git_hash
from neoxargs.runs.run_spec import RunSpec
from neoxargs.targets.megatron_unsupported import dropped_settings

#: What a disk that is full, limited, write-protected or broken answers. Permissions are checked before the start.
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
#: Raises Problems if the run does not fit in the memory of its devices.
CheckMemory = Callable[[Script, RunSpec], None]


def run(request: Request, check_memory: CheckMemory) -> int:
    """Start a run and return its exit code; raises Problems before anything has started."""
    interrupts.raise_on_sigterm()  # until the ranks run, and between attempts
    script = find_script(request.script)
    spec = resolve_launch(script, request)
    check_memory(script, spec)
    check_needs(script, spec, preflight.HERE)
    refuse(preflight.problems(spec, script.program, ["hosts"]))  # last, because that takes seconds
    with locked(script, spec, request) as lock:
        announce(script, spec)
        try:
            return prepare(script, spec) or start_ranks(script.path, spec, say, lock)
        except OSError as error:
            raise Problems(_not_writable(spec.config, error)) from error


def show(request: Request, form: Form | None) -> int:
    """Print what would be started (`--dry-run`), or one form of it (`--emit`); returns the exit code."""
    script = find_script(request.script)
    spec = resolve_launch(script, request)
    refuse(list(secrets.in_configuration(spec.config)))  # before anything shows their values
    refused = preflight.problems(spec, script.program, ["values", "program"])
    needs = preflight.problems(spec, script.program, _subjects_of_what_is_shown(request, form))
    left_out = dropped_settings(spec.config) if form == "megatron" else []
    if form in ("command", "runner"):
        left_out += missing_hostfile(spec.config, spec.resources)
    warnings = [*spec.warnings, *left_out, *(need.as_warning() for need in needs)]
    if request.as_json and not form:
        _print_json(script, spec, [*warnings, *refused], not has_errors(refused))
    else:
        warn([*warnings, *(problem.as_warning() for problem in refused)])
        print(_emitted(form, script, request, spec) if form else _dry_run_text(script, spec))
        if not form and request.gpus is None:
            _say_whether_it_would_start([*needs, *refused])
    return int(has_errors(refused))


def check_hosts(request: Request) -> int:
    """Print what every host has (`--check-hosts`); raises Problems if a host lacks something."""
    spec = resolve_launch(find_script(request.script), request)
    table, problems = host_checks.check_hosts(spec)
    print(table, flush=True)
    warn(spec.resources.warnings)
    refuse(problems)
    say(host_checks.what_was_checked(spec))
    return 0


# -- the stages ------------------------------------------------------------------------------------------------------


def resolve_launch(script: Script, request: Request) -> RunSpec:
    """Resolve a run and add the values that only a launch sets; raises Problems."""
    spec = stages.resolve_launch(script, request, git_hash())
    return replace(spec, config=requeued(spec.config, os.environ)) if script.program == "train" else spec


def check_needs(script: Script, spec: RunSpec, subjects: Container[preflight.Subject]) -> None:
    """Raise Problems for what the script needs on this machine and for what it does not support."""
    problems = preflight.problems(spec, script.program, subjects)
    if has_errors(problems):
        raise Problems([*problems, *spec.warnings])
    warn(problems)


def _subjects_of_what_is_shown(request: Request, form: Form | None) -> set[preflight.Subject]:
    """Return what this machine is checked for: not for packages if another one is assumed, nor if nothing is started.

    The batch script of `--emit sbatch`, and the flags of other programs, do not contain the launcher's command.
    """
    elsewhere: set[preflight.Subject] = {"trainer"} if request.gpus is not None else set()
    not_started: set[preflight.Subject] = {"command"} if form not in (None, "command", "runner") else set()
    return {*preflight.HERE} - {"values", "program"} - elsewhere - not_started


def locked(script: Script, spec: RunSpec, request: Request) -> RunLock | nullcontext[None]:
    """Return the lock on the folders of a run; raise Problems if another run holds it.

    generate.py and eval.py write nothing but logs of their own attempt there.
    """
    if script.program in ("generate", "eval"):
        return nullcontext()
    return lock_run(spec.config, os.environ, say, request.break_lock, new_launch())


def announce(script: Script, spec: RunSpec) -> None:
    """Print a summary of the run, in one line for generate.py and eval.py."""
    from neoxargs.runs.summary import print_summary, ranks

    reads = {"generate": "sampling from", "eval": "evaluating"}.get(script.program or "")
    if reads:
        options = spec.config.checkpoint
        say(f"{reads} {options.load or options.save}; ranks: {ranks(spec.config, spec.resources)}")
        return
    print_summary(spec)
    warn(spec.warnings)


def prepare(script: Script, spec: RunSpec) -> int:
    """Tokenise and compile once, before all ranks wait for it; returns the exit code of the step that failed, or 0."""
    from neoxargs.runs import lockfile  # a dry run does without its imports

    config, resources = spec.config, spec.resources
    environ = command(config, resources, script.path, os.environ).environ(os.environ)
    # Not of a requeued job that goes on: the record says how its first start was launched.
    records = script.program not in ("generate", "eval") and not continues_job(config, os.environ)
    if records:
        warn(lockfile.replaced_record(config, script.path))
        write_record(config)
    if script.program != "generate" and (failed := _tokenise(script, config, environ)):
        return failed
    if script.program == "train" and (failed := load_tasks(config, resources, environ, say)):
        return failed
    if records:
        lockfile.write_lock(config, script.path)  # after the token files exist, whose digests it contains
    compile_ops(config, resources, environ, say)
    return 0


def _not_writable(config: Config, error: OSError) -> Problem:
    """Return the problem of a disk that cannot be written to; raises any other error again."""
    if error.errno not in DISK_ERRORS:
        raise error
    folder = config.logging.run_dir
    what = f"run_dir ({folder}): {error.filename or 'a file in it'} cannot be written: {error.strerror}"
    hint = "free up space and inodes on this disk, or set run_dir to another folder"
    return Problem(what, config.place("run_dir"), hint, id="folder-not-writable", about=("run_dir",))


def _tokenise(script: Script, config: Config, environ: Mapping[str, str]) -> int:
    """Tokenise text; warn if the text has changed, because the checks before this saw the old tokens."""
    prefix = str(config.get("data_path"))
    before = digest(prefix)
    failed = tokenise(config, environ)
    if script.program == "train" and not failed and digest(prefix) != before:
        warn(list(other_data(config, loaded_checkpoint(config))))
    return failed


# -- what is printed -------------------------------------------------------------------------------------------------


def say(text: str) -> None:
    """Print a line about the run, marked to distinguish it from the output of the ranks."""
    print(f"deepy: {text}", file=sys.stderr, flush=True)


def warn(warnings: Sequence[Problem]) -> None:
    """Print warnings on standard error."""
    if warnings:
        report(warnings)


def refuse(problems: Sequence[Problem]) -> None:
    """Raise Problems if there are any."""
    if problems:
        raise Problems(problems)


def has_errors(problems: Sequence[Problem]) -> bool:
    """Return whether any of the problems is an error."""
    return any(problem.severity == "error" for problem in problems)


def _say_whether_it_would_start(problems: Sequence[Problem]) -> None:
    """Name the warnings that are errors in a launch: a dry run succeeds, because it may be for another machine."""
    ids = dict.fromkeys(problem.id for problem in problems if problem.severity == "error")
    if ids:
        say(f"on this machine, the run would not start; these warnings would be errors: {', '.join(ids)}")


def _print_json(script: Script, spec: RunSpec, problems: Sequence[Problem], ok: bool) -> None:
    launched = command(spec.config, spec.resources, script.path, os.environ)
    status = {"ok": ok, "problems": [problem.to_json() for problem in problems]}
    print(json.dumps(status | to_json(spec.config, launched), indent=2))


def _emitted(form: Form, script: Script, request: Request, spec: RunSpec) -> str:
    if form == "sbatch":
        return sbatch.script(spec.config, spec.resources, request)
    return emit(form, spec.config, spec.resources, command(spec.config, spec.resources, script.path, os.environ))


def _dry_run_text(script: Script, spec: RunSpec) -> str:
    from neoxargs.runs.summary import to_text

    launched = command(spec.config, spec.resources, script.path, os.environ)
    return f"{to_text(spec)}\n\n{dry_run(spec.config, spec.resources, launched)}"
