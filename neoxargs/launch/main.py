"""One use of `deepy train.py ...`: read, check, say what will happen, prepare, start; or only show it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from neoxargs.launch import environment, preflight
from neoxargs.launch.cluster import rank_env, sbatch
from neoxargs.launch.cluster.check_hosts import report, unready
from neoxargs.launch.cluster.devices import device
from neoxargs.launch.launchers.deepspeed import PACKAGE_ROOT, Command, command, free_port, with_package
from neoxargs.launch.preflight import launcher as launcher_checks
from neoxargs.launch.preflight.checkpoints import unreadable
from neoxargs.launch.preflight.data_files import certain_files, missing_files
from neoxargs.launch.preflight.disk_space import refused
from neoxargs.launch.prepare import compile_ops, data_command, tokenise, with_launch, with_text, write_record
from neoxargs.launch.processes import failures
from neoxargs.launch.processes.run import start
from neoxargs.launch.report.dry_run import Form, dry_run, emitted, facts
from neoxargs.launch.run_spec import RunSpec, resolve_run
from neoxargs.launch.targets.encode import script_arguments
from neoxargs.launch.targets.megatron_unsupported import untold
from neoxargs.problems import Problem, Problems, did_you_mean, render
from neoxargs.resolve import read_files
from neoxargs.resolve.config import Config
from neoxargs.resolve.derive import Unresolved
from neoxargs.resolve.trainer_support.unsupported import plugin_value_problems, unsupported

#: The script whose needs and abilities are known; of the other ones of ours, only the model's.
TRAINER, GENERATOR, EVALUATOR = "train.py", "generate.py", "eval.py"
SCRIPTS = (TRAINER, GENERATOR, EVALUATOR)
#: Seconds in which a launcher ends all ranks after the first one has failed.
LATER = 3.0


def run(script: str, files: Sequence[str], overrides: Sequence[str], directory: str | None) -> int:
    """Start a run and wait for its end; returns the exit code, raises Problems before anything has started."""
    path = found_script(script)
    if rank_env.names(os.environ):
        become_a_rank(path, files, overrides, directory)
    spec = _resolved(path, files, overrides, directory)
    config, resources = spec.config, spec.resources
    _refuse_what_cannot_run(path, spec)
    launched = command(config, resources, path, os.environ)
    _refuse([*environment.exposed(config, resources, os.environ),
             *launcher_checks.problems(config, resources, path, launched.words, os.environ)])  # fmt: skip
    _refuse(unready(config, resources))
    environ = launched.environ(os.environ)
    _announce(path, spec)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if Path(path).name not in (GENERATOR, EVALUATOR):
        write_record(config)
    if Path(path).name != GENERATOR and (failed := tokenise(config, environ)):
        return failed
    compile_ops(config, resources, environ, say)
    attempt = failures.begin(config)
    # a port is looked for last: the data may have taken hours
    launched = command(config, resources, path, os.environ, free_port(config, resources), attempt)
    return start(launched, os.environ, say, resources.remote, logs=failures.folder(config, attempt))


def become_a_rank(path: str, files: Sequence[str], overrides: Sequence[str], directory: str | None) -> NoReturn:
    """Under `torchrun deepy.py ...` or `srun deepy.py ...` the ranks are started already, and this is one of them."""
    names = rank_env.names(os.environ)
    assert names
    rank, local_rank = os.environ[names.rank], os.environ[names.local_rank]
    with _one_tells(rank, local_rank):
        spec = _resolved(path, files, overrides, directory, int(os.environ[names.world_size]))
        spec = replace(spec, resources=replace(spec.resources, device=device(os.environ)))
        first = data_command(spec.config)
        if first and not os.path.exists(f"{spec.config.data.data_path}.idx"):
            what = "the ranks have been started already, and text_path is not tokenised"
            _refuse([Problem(what, spec.config.place("text_path"), f"run this before: {shlex.join(first)}")])
        _refuse_what_cannot_run(path, spec)
        _announce(path, spec)
    if rank == "0" and Path(path).name == TRAINER:
        write_record(spec.config)
    words = [sys.executable, "-u", path, *script_arguments(spec.config, rank_env.attempt(os.environ))]
    os.execve(sys.executable, words, with_package(os.environ))


@contextmanager
def _one_tells(rank: str, local_rank: str) -> Iterator[None]:
    """The first rank says it for all. What only another machine lacks, the first one there says if it is not ended."""
    if rank == "0":
        yield
        return
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        try:
            yield
        except Problems:
            if local_rank != "0":
                sys.exit(1)
            time.sleep(LATER)
            raise


def check_hosts(script: str, files: Sequence[str], overrides: Sequence[str], directory: str | None) -> int:
    """Ask every machine for what a run needs (`--check-hosts`); returns 1 if one lacks something."""
    spec = _resolved(found_script(script), files, overrides, directory)
    table, problems = report(spec)
    print(table)
    _refuse(problems)
    return 0


def _refuse(problems: Sequence[Problem]) -> None:
    if problems:
        raise Problems(problems)


def show(
    script: str, files: Sequence[str], overrides: Sequence[str], directory: str | None, gpus: int | None,
    form: Form | None, as_json: bool,
) -> int:  # fmt: skip
    """Print what would be started (`--dry-run`), or one of its forms (`--emit`)."""
    path = found_script(script)
    spec = _resolved(path, files, overrides, directory, gpus)
    refused = _unsupported(path, spec.config)
    left_out = untold(spec.config) if form == "megatron" else []
    told = [*spec.warnings, *left_out, *map(_as_warning, _needs(path, spec))]
    if as_json and not form:
        launched = command(spec.config, spec.resources, path, os.environ)
        problems = [problem.to_json() for problem in [*told, *refused]]
        print(json.dumps({"ok": not _fails(refused), "problems": problems, **facts(spec.config, launched)}, indent=2))
        return int(_fails(refused))
    _warn([*told, *map(_as_warning, refused)])
    if form == "sbatch":
        words = [script, *files, *(["-d", directory] if directory else []), *(f"--set={text}" for text in overrides)]
        print(sbatch.script(spec.config, spec.resources, words, Path(files[0]).stem))
        return int(_fails(refused))
    launched = command(spec.config, spec.resources, path, os.environ)
    print(_shown(spec, launched, form))
    return int(_fails(refused))


def _fails(problems: Sequence[Problem]) -> bool:
    return any(problem.severity == "error" for problem in problems)


def found_script(script: str) -> str:
    """The script's path; ours are also found from another folder than deepy's."""
    for path in (Path(script), PACKAGE_ROOT / script):
        if path.is_file():
            return str(path)
    here = sorted(path.name for path in Path().glob("*.py"))
    hint = did_you_mean(script, dict.fromkeys([*here, *SCRIPTS])) or f"here: {', '.join(here) or 'no .py file'}"
    raise Problems([Problem(f"there is no script {script}", hint=hint)])


def say(text: str) -> None:
    """A line about the run that is not the run's own output."""
    print(f"deepy: {text}", file=sys.stderr, flush=True)


def _resolved(
    path: str, files: Sequence[str], overrides: Sequence[str], directory: str | None, gpus: int | None = None
) -> RunSpec:
    try:
        spec = resolve_run(files, overrides, directory, os.environ, gpus)
    except Unresolved as stop:
        absent = certain_files(stop.certain, stop.broken) if Path(path).name == TRAINER else []
        raise Problems([*stop.problems, *_unsupported(path, stop.certain), *absent]) from None
    config = with_launch(spec.config, path, read_files(files, directory))
    return replace(spec, config=with_text(config))


def _announce(script: str, spec: RunSpec) -> None:
    """What will run, to be checked at a glance; sampling needs less than training."""
    from neoxargs.launch.report.summary import draw, ranks

    reads = {GENERATOR: "sampling from", EVALUATOR: "evaluating"}.get(Path(script).name)
    if reads:
        options = spec.config.checkpoint
        say(f"{reads} {options.load or options.save}; ranks: {ranks(spec.config, spec.resources)}")
        return
    draw(spec)
    _warn(spec.warnings)


def _refuse_what_cannot_run(script: str, spec: RunSpec) -> None:
    problems = [*_needs(script, spec), *_unsupported(script, spec.config)]
    if any(problem.severity == "error" for problem in problems):
        raise Problems([*problems, *spec.warnings])
    _warn(problems)


def _needs(script: str, spec: RunSpec) -> list[Problem]:
    """Of our own scripts all needs are known; sampling, and another script, may do without the data that is named."""
    name, config = Path(script).name, spec.config
    if name == TRAINER:
        return preflight.all_needs(spec)
    logs = refused(config, "run_dir")
    if name == EVALUATOR:
        return [*missing_files(config), *unreadable(config), *preflight.harness(config), *logs]
    return [*map(_as_warning, missing_files(config)), *(unreadable(config) if name == GENERATOR else ()), *logs]


def _unsupported(script: str, config: Config) -> list[Problem]:
    """What a script of ours cannot do with this configuration; nothing is known of another one."""
    name = Path(script).name
    return [*unsupported(config, training=name == TRAINER), *plugin_value_problems(config)] if name in SCRIPTS else []


def _as_warning(problem: Problem) -> Problem:
    return replace(problem, severity="warning")


def _warn(warnings: Sequence[Problem] | map[Problem]) -> None:
    text = render(list(warnings))
    if text:
        print(text, file=sys.stderr, flush=True)


def _shown(spec: RunSpec, launched: Command, form: Form | None) -> str:
    if form:
        return emitted(form, spec.config, spec.resources)
    from neoxargs.launch.report.summary import text

    return f"{text(spec)}\n\n{dry_run(spec.config, spec.resources, launched, brief=sys.stdout.isatty())}"
