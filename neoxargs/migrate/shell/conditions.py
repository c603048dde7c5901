"""Evaluate the conditions of a script without running it."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from neoxargs.migrate.shell.values import Chars, text_of, unknowns_of


def evaluate(words: Sequence[Chars]) -> bool | None:
    """Return whether a test such as `"$A" = b` (without brackets) is true; None if that is unknown."""
    texts = [text_of(word) for word in words]
    for sign in ("||", "&&"):
        if sign in texts:
            at = texts.index(sign)
            return combined(sign, evaluate(words[:at]), evaluate(words[at + 1 :]))
    known = [not unknowns_of(word) for word in words]
    match texts:
        case ["!", *_]:
            inner = evaluate(words[1:])
            return None if inner is None else not inner
        case ["-z" | "-n" as sign, text]:
            unknowns, size = unknowns_of(words[1]), len(words[1])
            is_empty = not text or (size == 1 and any(unknown.is_unset for unknown in unknowns))
            return is_empty == (sign == "-z") if is_empty or size > len(unknowns) else None
        case [text] if known[0]:
            return text != ""
        case [one, sign, other] if known[0] and known[2]:
            return _compared(one, sign, other)
    return None


def combined(sign: str, one: bool | None, other: bool | None) -> bool | None:
    """Return whether two tests joined by `&&` or `||` are true; None if that is unknown."""
    decides = sign == "||"
    return decides if decides in (one, other) else None if None in (one, other) else not decides


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
