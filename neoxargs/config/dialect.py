"""Dialects: a dialect is a date and selects the defaults that GPT-NeoX had on that date.

`dialect:` sets it. Otherwise a file with a key that was added after the oldest dialect is of the newest one, or of the
last day before one of its other keys was removed; a file without such a key is of the oldest.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, timedelta
from functools import cache
from typing import NamedTuple

from neoxargs.base.problems import Place, Problem, did_you_mean
from neoxargs.config.value import Source, Value
from neoxargs.registry.history import NEWEST, SEED, changed_defaults, introduced, removed

Day = date  # alias for use in Dialect, whose field `date` hides the type
NAMES = {"neox-2021": SEED, "neox-2026": NEWEST}


class Dialect(NamedTuple):
    """A date and why it was chosen. or_else: if it was guessed, the other end of the range that the keys allow."""

    date: date
    reason: str
    or_else: Day | None = None

    @property
    def name(self) -> str:
        """`neox-2021`, `neox-2026`, or the date itself."""
        return next((name for name, known in NAMES.items() if known == self.date), self.date.isoformat())

    def defaults(self) -> dict[str, Value]:
        """Return the defaults of that date that differ from the registry's."""
        return _defaults(self.date)


@cache
def _defaults(day: date) -> dict[str, Value]:
    source = Source("default", text=Dialect(day, "").name)
    return {name: Value(default, source) for name, default in changed_defaults(day).items()}


def inferred(spelled: Mapping[str, Place]) -> Dialect:
    """Return the dialect of files that do not set one, from their keys as spelled.

    It is the newest in which all keys existed; SEED if it had them all and they do not tell more.
    """
    added = {name: since for name in spelled if (since := introduced(name))}
    dropped = {name: until for name in spelled if (until := removed(name))}
    newest = max(added, key=lambda name: added[name], default=None)
    first = min(dropped, key=lambda name: dropped[name], default=None)
    begin = added[newest] if newest else SEED
    end = dropped[first] - timedelta(days=1) if first else NEWEST
    if end < begin:  # keys that no GPT-NeoX had together; deepy reads all of them
        first, end = None, NEWEST
    and_removed = f", and {first} ({spelled[first]}) was removed on {dropped[first]}" if first else ""
    if newest is None:
        return Dialect(SEED, f"all keys existed in GPT-NeoX on {SEED}{and_removed}", end)
    reason = f"{newest} ({spelled[newest]}) was added to GPT-NeoX on {begin}{and_removed}"
    return Dialect(end, reason, begin if begin < end else None)


def named(value: Value) -> Dialect | Problem:
    """Return the dialect that a value of `dialect:` names, or a problem."""
    written = str(value.value).lower()
    day = NAMES.get(written) or _day(written)
    if day and day >= SEED:
        return Dialect(day, f"dialect: {written} ({value.source})")
    what = f'dialect ("{value.value}") must be {", ".join(NAMES)} or a date on or after {SEED}, such as 2022-12-14'
    # A year instead of a date: `2022`, `neox-2023`.
    end = _day(f"{written.removeprefix('neox-')}-12-31")
    if end and end > SEED:
        hint = f"write a date in that year, such as {max(end.replace(month=1, day=1), SEED)}"
    else:
        hint = did_you_mean(written, NAMES)
    return Problem(what, value.source.where, hint, id="dialect-unknown", about=("dialect",))


def _day(text: str) -> date | None:
    try:
        day = date.fromisoformat(text)
    except ValueError:
        return None
    # Python 3.11 and later accept other ISO 8601 forms, such as 20220101.
    return day if day.isoformat() == text else None
