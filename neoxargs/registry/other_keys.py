"""The settings of Transformers' TrainingArguments, Accelerate's configuration and Megatron-LM's command, by version.

other_keys.json is made by tests/support/other_versions.py. A key that the first of the compared versions lacks has
`since`, one that the last lacks has `until`, the first compared version without it.
"""

from __future__ import annotations

import json
import os.path
from functools import cache
from typing import Any

from neoxargs.base.record import Record


class Key(Record):
    """What is known of a key. type: names of types with `|` between them; of flags, also switch, many and any."""

    type: str
    choices: tuple[str, ...] = ()
    none: bool = False
    """Whether it can be null."""
    since: str = ""
    until: str = ""


def versions(program: str) -> tuple[str, ...]:
    """Return the versions that were compared, oldest first."""
    return tuple(_table()[program]["versions"])


@cache
def keys(program: str, section: str = "") -> dict[str, Key]:
    """Return the keys that any of the versions has."""
    rows = _table()[program]["sections"][section]
    return {key: Key(**{**row, "choices": tuple(row.get("choices", ()))}) for key, row in rows.items()}


@cache
def _table() -> dict[str, Any]:
    with open(os.path.join(os.path.dirname(__file__), "other_keys.json"), encoding="utf-8") as file:
        table: dict[str, Any] = json.load(file)
    return table
