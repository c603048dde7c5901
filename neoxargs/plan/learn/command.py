"""`deepy plan --learn RUN ...`: what it prints and writes."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from neoxargs.base.files import Text
from neoxargs.base.problems import Problem, Problems
from neoxargs.base.text import format_duration, format_number
from neoxargs.base.write_files import require_replaceable, write_all
from neoxargs.plan.given.assumptions import DEFAULT, Assumptions
from neoxargs.plan.given.errors import TENTH, Interval
from neoxargs.plan.given.rates import Rates
from neoxargs.plan.learn.measured import Measured, measured_runs
from neoxargs.plan.learn.posterior import default, learn


def run_learn(operands: Sequence[str], write: str | None, as_json: bool) -> int:
    """Print the rates of these runs' machine, write them to a file, and return the exit code. Raises Problems."""
    require_replaceable(write)
    runs: list[Measured] = []
    problems: list[Problem] = []
    for folder in operands:
        try:
            runs += measured_runs(folder)
        except Problems as stop:
            problems += stop.problems
    if problems:
        raise Problems(problems)
    rates = learn(runs)
    if write:
        write_all([Text(write, rates.text())])
    print(json.dumps(_to_json(runs, rates), indent=1) if as_json else "\n\n".join(_to_text(runs, rates, write)))
    return 0


def _errors(rates: Rates) -> list[float]:
    """Return the factor of the 80 % interval of each rate."""
    return [math.exp(TENTH * math.sqrt(rates.covariance[index][index])) for index in range(len(rates.values))]


def _to_text(runs: Sequence[Measured], rates: Rates, write: str | None) -> list[str]:
    learned = Assumptions(**rates.values)
    width = max(len(run.name) for run in runs) + 2
    lines = [f"{'run':<{width}}{'steps':>6}{'measured':>12}{'spread':>8}{'planned':>12}{'with these rates':>18}"]
    for run in runs:
        before, after = (format_duration(run.planned(assumed)) for assumed in (DEFAULT, learned))
        measured = f"{format_duration(run.seconds):>12}{f'{100 * run.spread:.0f} %':>8}"
        lines.append(f"{run.name:<{width}}{run.steps:>6}{measured}{before:>12}{after:>18}")
    title = f"rate of {rates.device}"
    width = max(map(len, (title, *rates.values))) + 2
    rows = [f"{title:<{width}}{'assumed':>10}{'learned':>10}  80 % interval"]
    for (name, value), error in zip(rates.values.items(), _errors(rates), strict=True):
        low, high = map(format_number, Interval.of(value, error))
        rows.append(f"{name:<{width}}{format_number(default(name)):>10}{format_number(value):>10}  {low} to {high}")
    written = f"written to {write}" if write else "--write NAME.rates.yml keeps them"
    error = 100 * (math.exp(TENTH * rates.unexplained) - 1)
    rest = f"what these rates do not explain is an error of {error:.0f} % (80 % interval) in the time of each layout"
    return ["\n".join(lines), "\n".join(rows), rest, written]


def _to_json(runs: Sequence[Measured], rates: Rates) -> dict[str, Any]:
    learned = Assumptions(**rates.values)
    return {
        "ok": True,
        "device": rates.device,
        "unexplained": rates.unexplained,
        "runs": [
            {"run": run.name, "steps": run.steps, "seconds": run.seconds, "spread": run.spread,
             "planned": run.planned(DEFAULT), "with_rates": run.planned(learned)}
            for run in runs
        ],
        "rates": {
            name: {"assumed": default(name), "value": value, "interval": Interval.of(value, error)}
            for (name, value), error in zip(rates.values.items(), _errors(rates), strict=True)
        },
    }  # fmt: skip
