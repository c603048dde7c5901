"""A length in a configuration: `2000` iterations, `30%` of the run (or `0.3`), `20B tokens`, `5M samples`."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

LENGTH = re.compile(r"(\d+(?:\.\d+)?)\s*(?:(|%)|([KMBT]?)\s*(token|sample|iteration)s?)", re.IGNORECASE)
THOUSANDS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
#: What a length may be, for messages.
UNITS = "iterations (2000), a share of the run (0.3 or 30%), or a number with a unit (20B tokens, 5M samples)"


class Length(NamedTuple):
    """A number above 0, and what it counts; a share is at most 1."""

    number: float
    unit: str
    """`iteration`, `sample`, `token` or `share`: of the run."""


def is_one_iteration(given: Any) -> bool:
    """Return whether a length is `1`, one iteration, which is easily mistaken for `1.0`, the whole run."""
    return isinstance(given, int) and given == 1 and given is not True


def order_hint(given: Any) -> str:
    """Return what to do about the end of a phase that is not after the end of the phase before it."""
    whole = "1 is one iteration: write 1.0 or 100% for the end of the run, or remove until"
    return whole if is_one_iteration(given) else "put the phases in the order of their ends"


def length(given: Any) -> Length | None:
    """Return what is given as a length; None if it is none."""
    text = f"{100 * given:.10f}%" if isinstance(given, float) and given <= 1 else str(given).removesuffix(".0")
    found = LENGTH.fullmatch(text.strip())
    if not found:
        return None
    number, unit = float(found[1]) * THOUSANDS[(found[3] or "").upper()], (found[4] or found[2]).lower()
    if number == 0 or (unit == "%" and number > 100):
        return None
    if unit == "%":
        return Length(number / 100, "share")
    if unit in ("token", "sample"):
        return Length(number, unit)
    return Length(number, "iteration") if number == int(number) else None
