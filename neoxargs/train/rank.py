"""Code that runs on every rank; the only package that imports torch, deepspeed and megatron."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from neoxargs.base.programs import Program

if TYPE_CHECKING:
    from neoxargs.processes.run_lock import RunLock
    from neoxargs.targets.wire_format import RankArguments


def main(argv: Sequence[str]) -> int:
    """Train as one rank and return its exit code."""
    return run_program("train", argv)


def sample(argv: Sequence[str]) -> int:
    """Generate text as one rank and return its exit code."""
    return run_program("generate", argv)


def evaluation(argv: Sequence[str]) -> int:
    """Evaluate as one rank and return its exit code."""
    return run_program("eval", argv)


def run_program(program: Program, argv: Sequence[str]) -> int:
    """Run a program as one rank, with a log of this rank if the launcher gave the run an attempt name.

    torch is imported after the log is open, so that errors of the import are in it.
    """
    from neoxargs.base.files import never_writable_for_all
    from neoxargs.base.problems import Problems
    from neoxargs.processes import failures
    from neoxargs.processes.console_filter import shows_all
    from neoxargs.processes.run_lock import inherited_lock, joined_lock
    from neoxargs.processes.streams import open_closed
    from neoxargs.processes.supervisor import run_supervised
    from neoxargs.targets.wire_format import parse_rank_arguments
    from neoxargs.train.process import gpu_environment, mpi

    open_closed()
    never_writable_for_all()
    try:
        arguments = parse_rank_arguments(argv)
        mpi.set_rank_environment(arguments.config)
        lock = inherited_lock(arguments.config) or joined_lock(arguments.config, os.environ, arguments.launch)
    except Problems:
        return _run(program, argv)  # raises the same problems and reports them
    config = arguments.config
    logs = failures.logs_folder(config, arguments.attempt) if arguments.attempt else None
    gpu_environment.set_environment(config, logs)
    if logs is None:
        return _run(program, argv)
    return run_supervised(
        lambda: _run(program, argv), logs, config.checkpoint.save, shows_all(config), lock,
        exits_early=bool(config.get("autotuning.enabled")),  # DeepSpeed ends the process when it has measured
    )  # fmt: skip


def _run(program: Program, argv: Sequence[str]) -> int:
    """Run a program's module and return the exit code: 0 on success, 1 after an error, which is reported."""
    from neoxargs.processes.console_filter import shows_all
    from neoxargs.targets.wire_format import parse_rank_arguments
    from neoxargs.train.deepspeed import lean_import
    from neoxargs.train.process import mpi, report, setup

    try:
        arguments = parse_rank_arguments(argv)
        report.config = arguments.config
        # Without effect after `run_program`, unless it failed there: then the problem is raised here, and reported.
        mpi.set_rank_environment(arguments.config)
        setup.show_all = shows_all(arguments.config)
        setup.set_numerics(arguments.config)
        with _lock(program, arguments):
            lean_import.import_packages(arguments.config.fusion.compile_layers)
            imported(program)(arguments)
    except Exception as error:
        report.report_failure(error)
        return 1
    return 0


def imported(program: Program) -> Callable[[RankArguments], None]:
    """Import the modules of a program, with torch, and return the function that runs it."""
    if program == "train":
        from neoxargs.train.run import run
    elif program == "generate":
        from neoxargs.train.generate import run
    else:
        from neoxargs.train.evaluate import run
    return run


def _lock(program: Program, arguments: RankArguments) -> RunLock | nullcontext[None]:
    """Return the lock on the run's folders, on rank 0 of a run that no deepy has started; raises Problems."""
    if program != "train" or arguments.attempt or os.environ.get("RANK", "0") != "0":
        return nullcontext()
    from neoxargs.processes.run_lock import lock_run

    return lock_run(arguments.config, os.environ, print)
