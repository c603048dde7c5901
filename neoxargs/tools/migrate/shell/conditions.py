"""Evaluate the conditions of a script without running it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase


def _is_known(text: str) -> bool:
    return "$" not in text and "`" not in text


def evaluate(texts: Sequence[str]) -> bool | None:
    """Return whether a test such as `"$A" = b` (without brackets) is true; None if that is unknown."""
    match texts:
        case ["!", *rest]:
            inner = evaluate(rest)
            return None if inner is None else not inner
        case ["true"]:
            return True
        case ["false"]:
            return False
        case ["-z" | "-n" as sign, text]:
            # An unset variable stays in the word as it is written, and would be empty.
            empty = not text or (re.fullmatch(r"\$\{?\w+[:-]*\}?", text) is not None)
            return empty == (sign == "-z") if empty or _is_known(text) else None
        case [one, sign, other] if _is_known(one) and _is_known(other):
            return _compared(one, sign, other)
    return None


def _compared(one: str, sign: str, other: str) -> bool | None:
    if sign in ("=", "==", "!="):
        # The right side of `[[ a == b* ]]` is a pattern.
        return fnmatchcase(one, other) == (sign != "!=")
    try:
        difference = int(one) - int(other)
    except ValueError:
        return None
    signs = {"-eq": difference == 0, "-ne": difference != 0, "-lt": difference < 0, "-le": difference <= 0,
             "-gt": difference > 0, "-ge": difference >= 0}  # fmt: skip
    return signs.get(sign)


def combine(condition: list[tuple[str, bool | None]]) -> bool | None:
    """Return whether tests joined by `&&` and `||` are true; None if that is unknown.

    condition: for each test, the operator before it and its result.
    """
    result = condition[0][1] if condition else None
    for sign, next_one in condition[1:]:
        if sign == "&&":
            result = False if False in (result, next_one) else None if None in (result, next_one) else True
        elif sign == "||":
            result = True if True in (result, next_one) else None if None in (result, next_one) else False
        else:
            result = next_one
    return result
