"""What runs on every rank: the only part that imports torch, deepspeed and megatron."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def main(argv: Sequence[str]) -> int:
    """Train as one rank; returns its exit code."""

    def train() -> int:
        from neoxargs.train.run import main

        return main(argv)

    return _watched(train, argv)


def sample(argv: Sequence[str]) -> int:
    """Generate as one rank; returns its exit code."""

    def generate() -> int:
        from neoxargs.train.generate import main

        return main(argv)

    return _watched(generate, argv)


def _watched(run: Callable[[], int], argv: Sequence[str]) -> int:
    """With a log of its own, where the start of the run has a name; torch is not imported before."""
    from neoxargs.launch import death
    from neoxargs.launch.encode import parse_rank_arguments
    from neoxargs.launch.rank import watched
    from neoxargs.problems import Problems
    from neoxargs.train import mpi

    try:
        arguments = parse_rank_arguments(argv)
        mpi.join(arguments.config)
    except Problems:
        return run()  # which words them
    if not arguments.attempt:
        return run()
    config = arguments.config
    return watched(run, death.folder(config, arguments.attempt), config.checkpoint.save)
