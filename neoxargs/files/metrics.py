"""The record of a run, metrics.jsonl in its folder, which `train/track/metrics.py` writes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

FILE = "metrics.jsonl"
#: Measures of preference training, the second of each by reward models: the share of the pairs in which the preferred
#: answer has the larger reward, and the difference of the rewards.
ACCURACIES, MARGINS = ("reward_acc", "accuracy"), ("margins", "margin")
#: Steps at the start of a run that do not count when its speed is compared with the plan, and how many must be left.
WARM_UP, LEAST = 3, 10
#: No row is longer, in bytes.
LONGEST_LINE = 1_000_000


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a metrics file, without an incomplete last line, which a killed run may leave.

    A number that is infinite or NaN is None.
    Raises ValueError if another line, or the only one, is not JSON.
    """
    if not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        for number, text in enumerate(file):
            if not text.endswith("\n"):
                return
            try:
                # Earlier versions wrote infinite losses of evaluations in Python's spelling.
                row = json.loads(text, parse_constant=lambda _: None)
            except ValueError:
                # Only the last line can be incomplete.
                if number and not next(file, ""):
                    return
                raise
            yield row


def by_launch(path: Path) -> Iterator[tuple[dict[str, Any], Iterator[dict[str, Any]]]]:
    """Yield the launches of a run: the row that each has begun with, and those of its steps, read before the next.

    Raises ValueError as `read` does, and LookupError if a step stands before the first launch.
    """
    launches = 0

    def launch(row: Mapping[str, Any]) -> int:
        nonlocal launches
        launches += int(row["event"] == "start")
        return launches

    for _, rows in groupby((row for row in read(path) if row["event"] in ("start", "step")), launch):
        first = next(rows)
        if first["event"] != "start":
            raise LookupError("start")
        yield first, rows  # noqa: B031 - what the caller reads, once


def ends_incomplete(path: Path) -> bool:
    """Return whether `read` drops the last line of a metrics file."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LONGEST_LINE))
        *_, line, after = b"", *file.read().split(b"\n")
    if after:
        return True
    try:
        json.loads(line or b"{}")
    except ValueError:
        return True
    return False


def perplexity(loss: float) -> float:
    """Return the exponential of a loss; from 700 on, where floating point numbers end, that of 700."""
    return math.exp(min(loss, 700.0))


def is_cross_entropy(step: Mapping[str, Any]) -> bool:
    """Return whether the loss of a step is the mean over tokens, not that of preference training."""
    return not rewards(step, "train/")


def rewards(row: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the accuracy and the margin of the rewards in preference training; none for other losses."""
    words = {**dict.fromkeys(ACCURACIES, "reward accuracy"), **dict.fromkeys(MARGINS, "reward margin")}
    return {what: row[prefix + name] for name, what in words.items() if prefix + name in row}
