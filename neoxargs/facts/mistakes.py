"""What is wrong with the entries of a value, such as the phases of a schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from neoxargs.base.problems import did_you_mean


class Mistakes(Exception):
    """The problems of a value: for each the name of the entry, what is wrong with it, and what to write instead."""

    def __init__(self, problems: Sequence[tuple[str, str, str]]) -> None:
        self.problems = problems
        super().__init__(problems)


def refuse(problems: Iterable[tuple[str, str, str]]) -> None:
    """Raise Mistakes if there are any."""
    if found := list(problems):
        raise Mistakes(found)


def refuse_each(listed: Sequence[Any], wrong: Callable[[Any, int], Iterator[tuple[str, str]]]) -> None:
    """Raise Mistakes with what is wrong with the phases by themselves. wrong: of a phase and its number, from 1 on."""
    refuse((f"phase {number}", *found) for number, given in enumerate(listed, 1) for found in wrong(given, number))


def wrong_keys(given: Any, keys: Sequence[str], entry: str, example: str) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the form of an entry, such as a `phase`, and what to write instead."""
    if not isinstance(given, Mapping):
        yield f"it is {given!r}, without keys", f"write a {entry} as {example}"
        return
    for key in (key for key in given if key not in keys):
        yield f"unknown key: {key}", did_you_mean(str(key), keys) or f"a {entry} has the keys {', '.join(keys)}"


def is_finite(value: Any) -> bool:
    """Return whether a value is a number that can be computed with: not infinite, and no boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
