"""What runs on every rank: the only part that imports torch, deepspeed and megatron."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str]) -> int:
    """Train as one rank; returns its exit code."""
    from neoxargs.train.run import main as run

    return run(argv)
