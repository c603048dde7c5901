"""Run as one rank: `torchrun deepy.py train.py ...` and `srun deepy.py ...` start a deepy process for every rank."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from typing import NoReturn

from neoxargs.base.problems import Problem, Problems
from neoxargs.base.record import replace
from neoxargs.base.request import Request
from neoxargs.checks.all import HERE
from neoxargs.files.run_record import write_record
from neoxargs.hosts import rank_env
from neoxargs.hosts.devices import device
from neoxargs.hosts.environment import with_package
from neoxargs.hosts.slurm import job
from neoxargs.launch.stages import Name, Stage, State, launch_of, make_command, run_until, say, unchanged
from neoxargs.launch.start.prepare import data_command
from neoxargs.launch.start.restarts import continues_job
from neoxargs.processes.run_lock import held_by_another_launch, lock_run
from neoxargs.runs.lockfile import write_lock
from neoxargs.targets.wire_format import script_arguments

#: Seconds in which a launcher ends all ranks after the first one failed.
LAUNCHER_STOP_SECONDS = 3.0


def become_rank(request: Request, others: Mapping[Name, Stage]) -> NoReturn:
    """Check the configuration, then replace this process by the script with its arguments; raises Problems.

    others: stages of the caller for rank 0, see `run_until`.
    """
    names = rank_env.names(os.environ)
    assert names
    rank, size, local_rank = rank_env.numbers(names, os.environ)
    subjects = [subject for subject in HERE if subject != "command"]
    with _only_rank_0_prints(rank, local_rank):
        state = launch_of(replace(request, gpus=size), subjects)
        own: dict[Name, Stage] = {"command": _started_already, "hosts": unchanged, "lock": partial(_lock, rank)}
        state = run_until("announce", state, {**({} if rank else others), **own})
    config, script, planned = state.spec.config, state.script, state.spec.planned
    if rank == 0 and script.program == "train" and not continues_job(config, os.environ):
        write_record(config)
        write_lock(config, script.path, planned.rates if planned else "")
    launch = rank_env.launch_id(os.environ) if script.program == "train" else ""
    arguments = script_arguments(config, rank_env.attempt(os.environ), launch, job(os.environ), planned)
    words = [sys.executable, "-u", script.path, *arguments]
    # This process keeps its number, by which its launcher and the lock of the run know it.
    os.execve(sys.executable, words, with_package(os.environ))


def _started_already(state: State) -> State:
    """Add the values of a launch to a run whose ranks another launcher has started; its text must be tokenised."""
    spec = make_command(state).spec
    tokenises = data_command(spec.config)
    if tokenises and not os.path.exists(f"{spec.config.data.data_path}.idx"):
        what = "the text in text_path is not tokenised yet; it must be tokenised before the ranks start"
        hint, about = f"run this command once, then start the ranks again: {shlex.join(tokenises)}", ("text_path",)
        place = spec.config.place("text_path")
        raise Problems([Problem(what, place, hint, id="text-not-tokenised", about=about)])
    # A given number of GPUs is resolved as for a machine that has them.
    return replace(state, resolved=replace(spec, resources=replace(spec.resources, device=device(os.environ))))


def _lock(rank: int, state: State) -> State:
    """Take the lock of the run on rank 0, for this process and the program that it becomes; raises Problems.

    The other ranks end silently if another run holds it, before they touch its logs.
    """
    config, request, launch = state.spec.config, state.request, rank_env.launch_id(os.environ)
    if state.script.program != "train":
        return state
    if rank == 0:
        lock_run(config, os.environ, say, request.break_lock, launch)
    elif not request.break_lock and held_by_another_launch(config, os.environ, launch):
        sys.exit(1)
    return state


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
