"""Lengths of a run's phases: `2000` iterations, `30%` of the run (or `0.3`), `20B tokens`, `5M samples`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from neoxargs.facts.batch_sizes import BatchSizes

LENGTH = re.compile(r"(\d+(?:\.\d+)?)\s*(?:(|%)|([KMBT]?)\s*(token|sample|iteration)s?)", re.IGNORECASE)
THOUSANDS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
#: What a length may be, for messages.
UNITS = "iterations (2000), a share of the run (0.3 or 30%), or a number with a unit (20B tokens, 5M samples)"


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
    text = f"{100 * given:.10f}%" if isinstance(given, float) and given <= 1 else str(given).removesuffix(".0")
    found = LENGTH.fullmatch(text.strip())
    if not found:
        return None
    number, unit = float(found[1]) * THOUSANDS[(found[3] or "").upper()], (found[4] or found[2]).lower()
    if number == 0 or (unit == "%" and number > 100):
        return None
    if unit in ("token", "sample"):
        return number / (sizes.tokens if unit == "token" else 1) + 1e-9, False
    if unit == "%":
        return number / 100 * sizes.iterations, True
    return (number, True) if number == int(number) else None
