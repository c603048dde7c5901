"""Lengths of a run's phases (facts/length_units.py) in iterations or in samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from neoxargs.facts.batch_sizes import BatchSizes
from neoxargs.facts.length_units import length


class Sizes(NamedTuple):
    """What lengths are converted with."""

    iterations: int
    """Of the run."""
    batches: BatchSizes
    tokens: int
    """Of a sample."""

    @classmethod
    def of(cls, get: Callable[[str], Any]) -> Sizes:
        """Return the sizes of a run's parameters."""
        return cls(get("train_iters"), BatchSizes.of(get), get("seq_length"))


def iterations(given: Any, sizes: Sizes) -> int | None:
    """Return a length in iterations, rounded down, at least 1; None if it is none."""
    found = _measured(given, sizes)
    if found is None:
        return None
    number, is_iterations = found
    return max(1, int((number if is_iterations else sizes.batches.iterations_in(int(number))) + 1e-9))


def samples(given: Any, sizes: Sizes) -> int | None:
    """Return a length in samples, rounded down, at least 1; None if it is none."""
    found = _measured(given, sizes)
    if found is None:
        return None
    number, is_iterations = found
    return max(1, sizes.batches.samples_after(int(number + 1e-9)) if is_iterations else int(number))


def _measured(given: Any, sizes: Sizes) -> tuple[float, bool] | None:
    """Return a length above 0, and whether it is in iterations or in samples."""
    found = length(given)
    if found is None:
        return None
    if found.unit in ("token", "sample"):
        return found.number / (sizes.tokens if found.unit == "token" else 1) + 1e-9, False
    return found.number * (sizes.iterations if found.unit == "share" else 1), True
