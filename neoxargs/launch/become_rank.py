"""Run as one rank: `torchrun deepy.py train.py ...` and `srun deepy.py ...` start a deepy process for every rank."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import NoReturn

from neoxargs.base.problems import Problem, Problems
from neoxargs.base.programs import Script, find_script
from neoxargs.base.record import replace
from neoxargs.base.request import Request
from neoxargs.checks import all as preflight
from neoxargs.files.run_record import write_record
from neoxargs.hosts import rank_env
from neoxargs.hosts.devices import device
from neoxargs.hosts.environment import with_package
from neoxargs.hosts.slurm import job
from neoxargs.launch.main import announce, check_needs, refuse, resolve_launch, say
from neoxargs.launch.start.prepare import data_command
from neoxargs.launch.start.restarts import continues_job
from neoxargs.processes.run_lock import held_by_another_launch, lock_run
from neoxargs.runs.lockfile import write_lock
from neoxargs.runs.run_spec import RunSpec
from neoxargs.targets.wire_format import script_arguments

#: Seconds in which a launcher ends all ranks after the first one failed.
LAUNCHER_STOP_SECONDS = 3.0


def become_rank(request: Request) -> NoReturn:
    """Check the configuration, then replace this process by the script with its arguments; raises Problems."""
    names = rank_env.names(os.environ)
    assert names
    script = find_script(request.script)
    rank, size, local_rank = rank_env.numbers(names, os.environ)
    with _only_rank_0_prints(rank, local_rank):
        spec = resolve_launch(script, replace(request, gpus=size))
        # A given number of GPUs is resolved as for a machine that has them.
        spec = replace(spec, resources=replace(spec.resources, device=device(os.environ)))
        _check_tokenised(spec)
        check_needs(script, spec, {*preflight.HERE} - {"command"})
        if script.program == "train":
            _lock(rank, spec, request)
        announce(script, spec)
    if rank == 0 and script.program == "train" and not continues_job(spec.config, os.environ):
        write_record(spec.config)
        write_lock(spec.config, script.path)
    _execute(script, spec)


def _lock(rank: int, spec: RunSpec, request: Request) -> None:
    """Take the lock of the run on rank 0, for this process and the program that it becomes; raises Problems.

    The other ranks end silently if another run holds it, before they touch its logs.
    """
    launch = rank_env.launch_id(os.environ)
    if rank == 0:
        lock_run(spec.config, os.environ, say, request.break_lock, launch)
    elif not request.break_lock and held_by_another_launch(spec.config, os.environ, launch):
        sys.exit(1)


def _execute(script: Script, spec: RunSpec) -> NoReturn:
    launch = rank_env.launch_id(os.environ) if script.program == "train" else ""
    arguments = script_arguments(spec.config, rank_env.attempt(os.environ), launch, job(os.environ))
    words = [sys.executable, "-u", script.path, *arguments]
    # This process keeps its number, by which its launcher and the lock of the run know it.
    os.execve(sys.executable, words, with_package(os.environ))


def _check_tokenised(spec: RunSpec) -> None:
    config, tokenises = spec.config, data_command(spec.config)
    if tokenises and not os.path.exists(f"{config.data.data_path}.idx"):
        what = "the text in text_path is not tokenised yet; it must be tokenised before the ranks start"
        hint, about = f"run this command once, then start the ranks again: {shlex.join(tokenises)}", ("text_path",)
        refuse([Problem(what, config.place("text_path"), hint, id="text-not-tokenised", about=about)])


@contextmanager
def _only_rank_0_prints(rank: int, local_rank: int) -> Iterator[None]:
    """Let rank 0 print for all ranks.

    The first rank of another host reports problems that only its host has: it waits, and if rank 0 had the same
    problems, the launcher ends it first.
    """
    if rank == 0:
        yield
        return
    with open(os.devnull, "w") as null, redirect_stdout(null), redirect_stderr(null):
        try:
            yield
        except Problems:
            if local_rank != 0:
                sys.exit(1)
            time.sleep(LAUNCHER_STOP_SECONDS)
            raise
