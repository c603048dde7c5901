"""Rates of the user's own machines, which `deepy plan --learn` finds from runs and writes to NAME.rates.yml.

A rate is an assumption of the plan. What the runs do not determine stays as uncertain as it was; what they determine
only together has correlated errors, so the file has the covariance of the rates' logarithms.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from neoxargs.base.problems import Place, Problem, Problems
from neoxargs.base.record import Record
from neoxargs.plan.given.assumptions import NAMES
from neoxargs.resolve.yaml.read import File, find_file, read_text

SUFFIX = ".rates.yml"
#: First lines of the file.
HEAD = """\
# Rates that `deepy plan --learn` found from the runs below. `deepy plan NAME.yml` uses them if this file is called
# NAME.rates.yml; `--rates FILE` names another file. covariance: of the rates' logarithms, in their order.
format: 1
"""


class Rates(Record):
    """Assumptions about one kind of device, with their uncertainty."""

    device: str
    values: Mapping[str, float]
    """Assumption -> its value."""
    covariance: Sequence[Sequence[float]]
    """Of the logarithms of the values, in their order."""
    runs: Sequence[str]
    path: str = ""
    """The file; empty before it is written."""

    def variance(self, gradient: Sequence[float]) -> float:
        """Return the variance of a quantity with this gradient by the logarithms of the values."""
        pairs = zip(gradient, self.covariance, strict=True)
        return sum(g * other * each for g, row in pairs for other, each in zip(gradient, row, strict=True))

    def text(self) -> str:
        """Return the file."""
        lines = [f"device: {self.device}", "runs:", *(f"  - {name}" for name in self.runs), "rates:"]
        lines += [f"  {name}: {value:.6g}" for name, value in self.values.items()]
        lines += ["covariance:", *(f"  - [{', '.join(f'{each:.6g}' for each in row)}]" for row in self.covariance)]
        return HEAD + "\n".join(lines) + "\n"


def read_rates(path: str) -> Rates:
    """Read a file. Raises Problems."""
    file = File(*read_text(path))
    found: Any = file.mapping().to_python()
    values, rows = found.get("rates"), found.get("covariance")
    if found.get("format") != 1 or not _is_valid(values, rows) or not isinstance(found.get("device"), str):
        hint = "deepy plan --learn RUN ... --write FILE writes such a file"
        raise Problems(
            Problem("this file is not a valid file of rates", Place(file.name, 0, 0), hint, id="rates-unreadable")
        )
    return Rates(found["device"], {name: float(x) for name, x in values.items()}, rows, found.get("runs") or [], path)


def _is_valid(values: object, rows: object) -> bool:
    if not isinstance(values, dict) or not isinstance(rows, list) or not values.keys() <= {*NAMES}:
        return False
    is_square = len(rows) == len(values) and all(isinstance(row, list) and len(row) == len(values) for row in rows)
    return is_square and all(_positive(x) for x in values.values()) and all(_finite(x) for row in rows for x in row)


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _positive(value: object) -> bool:
    return _finite(value) and value > 0  # type: ignore[operator]


def beside(files: Iterable[str], directory: str | None) -> str | None:
    """Return the file of rates beside the last of these configuration files that has one."""
    found = None
    for name in files:
        try:
            path = find_file(name, directory)
        except Problems:  # one that `deepy init` will write
            path = name
        stem, suffix = os.path.splitext(path)
        if suffix in (".yml", ".yaml") and os.path.isfile(stem + SUFFIX):
            found = stem + SUFFIX
    return found
