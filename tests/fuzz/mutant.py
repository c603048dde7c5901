"""The result of a mutation, and the values that mutations use; the mutations are in placed.py and free.py."""

from __future__ import annotations

import random
from typing import NamedTuple

Chance = random.Random


class Spot(NamedTuple):
    """Where a problem must point: a line and, if known, a column (both from 1; column 0: any)."""

    line: int
    column: int = 0


class Mutant(NamedTuple):
    """A mutated text, the kind of mutation, and where a problem must point (None: anywhere)."""

    text: str
    kind: str
    spot: Spot | None = None


VALUES = (
    "null", "true", "yes", "auto", "1e400", ".nan", "-.inf", "[]", "{}", '""', '"10"', "-1", "0", "0.5", "5e8", "1e-4",
    "1.0e_8", "1,000", "1_000", "0x10", "0123", "1__0", "--1", "\uff11\uff12", "dynamic", "[[1]]", "{a: 1}",
    "[a, null]", '[[["global"], 3]]', "99999999999999999999", "9" * 5000, "-" + "9" * 400, "1e-400", "cpu", "x" * 2000,
    "é\u200b", "all",
)  # fmt: skip
