"""The assumptions of a plan: every number that it uses and that no configuration file sets; assumptions.json has them.

`deepy plan --assumptions` lists them with their sources; `--assume KEY=VALUE` replaces one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from neoxargs.base.problems import Problem, Problems, did_you_mean
from neoxargs.base.text import GIB

#: Bytes of a number in fp32, and in fp16 or bf16.
SINGLE, HALF = 4, 2
#: Rows of the vocabulary, before padding, where the tokenizer's size is unknown: GPT-2's.
VOCABULARY = 50_257
#: Most elements of the buffer in which DeepSpeed reduces gradients without ZeRO.
ALLREDUCE_BUCKET = 500_000_000
#: Logits that the loss computes at once on a CPU (train/losses/cross_entropy.py).
LOGITS_ON_CPU = 2**25


#: The largest value of an assumption that has no other limit.
NO_LIMIT = 1e18
#: Unit of an assumption -> its smallest and largest value. What a time is divided by is never 0.
RANGES = {
    "fraction of memory": (0.01, 1), "fraction of peak rate": (0.001, 1), "fraction of bandwidth": (0.001, 1),
    "fraction of compute time": (0, 1), "ratio": (0, 100), "ratio to the mean": (1, 1000), "factor": (0.001, 1000),
    "factor of at least 1": (1, 1000),
    "GB/s": (0.001, NO_LIMIT), "parameters/s": (1, NO_LIMIT), "GiB": (0, NO_LIMIT), "bytes": (0, NO_LIMIT),
    "elements": (1, NO_LIMIT), "tokens": (0, NO_LIMIT), "s": (0, 3600), "0 or 1": (0, 1), "0, 1 or 2": (0, 2),
}  # fmt: skip
#: Value of an assumption that the configuration decides.
CONFIGURED = -1


class Row(NamedTuple):
    """A row of assumptions.json. default: CONFIGURED where the configuration decides. source: where it is from."""

    default: float
    unit: str
    meaning: str
    source: str


_TEXT = Path(__file__).with_suffix(".json").read_text(encoding="utf-8")
ROWS = {name: Row(*row) for name, row in json.loads(_TEXT).items()}
NAMES = tuple(ROWS)


class Assumptions:
    """The value of each row, as an attribute of its name. The defaults describe train.py with torch 2.13 on Linux."""

    def __init__(self, **changes: float) -> None:
        if unknown := changes.keys() - ROWS.keys():
            raise TypeError(f"no assumption is called {', '.join(sorted(unknown))}")
        vars(self).update({name: row.default for name, row in ROWS.items()} | changes)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> float: ...

    def bytes_of(self, name: str) -> int:
        """Return an assumption in GiB as bytes."""
        return int(getattr(self, name) * GIB)

    def most_logits(self, kind: str) -> int:
        """Return the logits that the loss computes at once on a kind of device."""
        return LOGITS_ON_CPU if kind == "cpu" else int(self.logits_at_once)


#: What a plan assumes unless told otherwise.
DEFAULT = Assumptions()


def with_changes(changes: list[str], learned: Mapping[str, float] | None = None) -> Assumptions:
    """Return assumptions with learned values and `KEY=VALUE` changes, which come last.

    Raises Problems that name unknown keys and values out of range.
    """
    problems: list[Problem] = []
    values: dict[str, float] = {}
    for change in changes:
        key, _, text = change.partition("=")
        key = key.strip().replace("-", "_")
        if key not in ROWS:
            hint = did_you_mean(key, NAMES) or "deepy plan --assumptions lists all assumptions"
            problems.append(Problem(f"unknown assumption: {key}", hint=hint, id="unknown-assumption"))
            continue
        values[key] = number = _number(text)
        if not _allowed(ROWS[key], number):
            problems.append(_outside(key, text))
    if problems:
        raise Problems(problems)
    return Assumptions(**{**(learned or {}), **values})


def _number(text: str) -> float:
    """Return the number, or nan, which no range contains."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _allowed(row: Row, number: float) -> bool:
    if number == CONFIGURED == row.default:
        return True
    low, high = RANGES[row.unit]
    return low <= number <= high and (number.is_integer() or not row.unit.startswith("0"))


def _outside(name: str, text: str) -> Problem:
    row = ROWS[name]
    example = RANGES[row.unit][0] if row.default == CONFIGURED else row.default
    what = f"--assume {name} ({text!r}) must be {_range(row)}"
    return Problem(what, hint=f"for example --assume {name}={example:g}", id="assumption-value")


def _range(row: Row) -> str:
    """Return the allowed values, such as `a number from 0.001 to 1 (fraction of bandwidth)`."""
    if row.unit.startswith("0"):
        return row.unit
    low, high = RANGES[row.unit]
    limits = f"of at least {low:g}" if high == NO_LIMIT else f"from {low:g} to {high:g}"
    derived = ", or -1 to derive it from the configuration" if row.default == CONFIGURED else ""
    return f"a number {limits} ({row.unit}){derived}"


def list_assumptions(learned: Mapping[str, float], path: str = "", changes: Sequence[str] = ()) -> str:
    """Return all assumptions with their meaning and source, for `--assumptions`.

    learned: in the file `path`. changes: as `with_changes` has them. Raises Problems.
    """
    values, blocks = vars(with_changes(list(changes), learned)), []
    changed = vars(with_changes(list(changes)))
    for name, row in ROWS.items():
        value, source = values[name], path if name in learned else row.source
        source = "--assume" if changed[name] != row.default else source
        unit = f" ({row.unit})" if row.unit.startswith(("fraction", "ratio", "factor")) else f" {row.unit}"
        if row.unit.startswith("0"):  # a switch, whose unit is the list of its values
            unit = ""
        shown = "derived from the configuration" if value == CONFIGURED else f"{value:g}{unit}"
        blocks.append(f"{name}: {shown}\n    {row.meaning}\n    allowed: {_range(row)}\n    source: {source}")
    return "\n".join(blocks)
