"""Rates of the user's own machines, which `deepy plan --learn` finds from runs and writes to NAME.rates.yml.

A rate is an assumption of the plan. What the runs do not determine stays as uncertain as it was; what they determine
only together has correlated errors, so the file has the covariance of the rates' logarithms.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from neoxargs.base.problems import Place, Problem, Problems, listed
from neoxargs.base.record import Record
from neoxargs.facts.mistakes import is_finite
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
    unexplained: float
    """Standard deviation of log(measured / planned) with the right rates."""
    runs: Sequence[str]
    path: str = ""
    """The file; empty before it is written."""

    def variance(self, gradient: Sequence[float]) -> float:
        """Return the variance of the logarithm of a time with this gradient by those of the values."""
        pairs = zip(gradient, self.covariance, strict=True)
        products = (g * other * each for g, row in pairs for other, each in zip(gradient, row, strict=True))
        return self.unexplained**2 + sum(products)

    def text(self) -> str:
        """Return the file."""
        lines = [f"device: {self.device}", "runs:", *(f"  - {name}" for name in self.runs), "rates:"]
        lines += [f"  {name}: {value:.6g}" for name, value in self.values.items()]
        lines += [f"unexplained: {self.unexplained:.6g}"]
        lines += ["covariance:", *(f"  - [{', '.join(f'{each:.6g}' for each in row)}]" for row in self.covariance)]
        return HEAD + "\n".join(lines) + "\n"


def read_rates(path: str) -> Rates:
    """Read a file. Raises Problems."""
    file = File(*read_text(path))
    found: Any = file.mapping().to_python()
    values, rows, device = found.get("rates"), found.get("covariance"), found.get("device")
    wrong = {
        "format": found.get("format") != 1,
        "device": not isinstance(device, str),
        "rates": not (isinstance(values, dict) and {*values} <= {*NAMES} and all(map(_positive, values.values()))),
        "covariance": not _is_square(rows, len(values) if isinstance(values, dict) else 0),
        "unexplained": not _positive(found.get("unexplained")),
    }
    if any(wrong.values()):
        names = listed([name for name, is_wrong in wrong.items() if is_wrong], "and")
        what = f"this file is not a valid file of rates: {names} {'are' if ' and ' in names else 'is'} missing or wrong"
        hint = "deepy plan --learn RUN ... --write FILE writes such a file"
        raise Problems(Problem(what, Place(file.name, 0, 0), hint, id="rates-unreadable"))
    rates = {name: float(x) for name, x in values.items()}
    return Rates(found["device"], rates, rows, found["unexplained"], found.get("runs") or [], path)


def _is_square(rows: object, size: int) -> bool:
    is_square = isinstance(rows, list) and len(rows) == size
    return is_square and all(isinstance(row, list) and len(row) == size and all(map(is_finite, row)) for row in rows)  # type: ignore[attr-defined]


def _positive(value: object) -> bool:
    return is_finite(value) and value > 0  # type: ignore[operator]


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
