"""What runs on every rank: the only part that imports torch, deepspeed and megatron."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module


def main(argv: Sequence[str]) -> int:
    """Train as one rank; returns its exit code."""
    return _supervised("neoxargs.train.run", argv)


def sample(argv: Sequence[str]) -> int:
    """Generate as one rank; returns its exit code."""
    return _supervised("neoxargs.train.generate", argv)


def evaluation(argv: Sequence[str]) -> int:
    """Evaluate as one rank; returns its exit code."""
    return _supervised("neoxargs.train.evaluate", argv)


def _supervised(program: str, argv: Sequence[str]) -> int:
    """With a log of its own, where the start of the run has a name; torch is not imported before."""
    from neoxargs.launch.processes import failures
    from neoxargs.launch.processes.console_filter import shows_all
    from neoxargs.launch.processes.supervisor import run_supervised
    from neoxargs.launch.targets.wire_format import parse_rank_arguments
    from neoxargs.problems import Problems
    from neoxargs.train.process import mpi

    try:
        arguments = parse_rank_arguments(argv)
        mpi.set_rank_environment(arguments.config)
    except Problems:
        return _run(program, argv)  # which words them
    if not arguments.attempt:
        return _run(program, argv)
    config = arguments.config
    logs = failures.logs_folder(config, arguments.attempt)
    return run_supervised(lambda: _run(program, argv), logs, config.checkpoint.save, shows_all(config))


def _run(program: str, argv: Sequence[str]) -> int:
    """0 when all went as it should, 1 when it could not go on."""
    from neoxargs.launch.processes.console_filter import shows_all
    from neoxargs.launch.targets.wire_format import parse_rank_arguments
    from neoxargs.train.process import mpi, report, setup

    try:
        arguments = parse_rank_arguments(argv)
        mpi.set_rank_environment(arguments.config)
        setup.show_all = shows_all(arguments.config)
        import_module(program).run(arguments)
    except Exception as error:
        report.report_failure(error)
        return 1
    return 0
