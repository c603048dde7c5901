"""Megatron-LM flags that have no counterpart, by reason.

Every option of Megatron-LM's parser (2026) is either read (`flags.py`, or `megatron=` in the registry) or in
unsupported_flags.json; a test compares both with the parser's own list. The file's rows have a reason, a clause after
"because", and patterns of flags, where `*` is any text. The first match counts: `older` are flags of older versions,
`forks` those that only forks have (Megatron-DeepSpeed, BigScience's, BigCode's, Pai-Megatron-Patch and others).
"""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any


@cache
def tables() -> dict[str, Any]:
    """Return the file: the three tables of rows; `in_common` and `harmless`, reasons (see the functions below)."""
    found: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    return found


def reason(name: str) -> str:
    """Return why a flag (without `--`) has no counterpart; empty if it is not a flag of Megatron-LM."""
    return next((row["reason"] for row in _rows() if any(fnmatchcase(name, flag) for flag in row["flags"])), "")


def is_listed(name: str) -> bool:
    """Return whether a flag is in the tables by its own name, and not only by a pattern."""
    return any(name in row["flags"] for row in _rows())


def is_in_common(reason: str) -> bool:
    """Return whether so many flags have this reason that one warning names them all."""
    return reason in tables()["in_common"]


def is_harmless(reason: str) -> bool:
    """Return whether the flags with this reason affect neither the model nor its training."""
    return is_in_common(reason) or reason in tables()["harmless"]


def _rows() -> list[dict[str, Any]]:
    return [*tables()["older"], *tables()["megatron"], *tables()["forks"]]
