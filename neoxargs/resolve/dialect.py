"""Which year's GPT-NeoX a file speaks. A dialect is a date: it chooses the defaults of that day.

`dialect:` says it; left out, a file with a name that only newer versions have is read as the newest.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from functools import cache
from typing import NamedTuple

from neoxargs.problems import Place, Problem, did_you_mean
from neoxargs.registry import REGISTRY
from neoxargs.registry.history import NEWEST, SEED, default_at, introduced
from neoxargs.resolve.config import Config, Source, Value

NAMES = {"neox-2021": SEED, "neox-2026": NEWEST}
#: What changed its default and thereby trains another model, the weightiest first, with the names that set it too.
DECISIVE = {
    "gradient_clipping": ("clip_grad", "optimizer.params.max_grad_norm"),
    "attention_dropout": (),
    "hidden_dropout": (),
    "weight_decay": ("optimizer.params.weight_decay",),
}


class Dialect(NamedTuple):
    """A day and how we know."""

    date: date
    reason: str

    @property
    def name(self) -> str:
        """`neox-2021`, `neox-2026`, or the date itself."""
        return next((name for name, day in NAMES.items() if day == self.date), self.date.isoformat())

    def defaults(self) -> dict[str, Value]:
        """The defaults of that day, where they are not the registry's own."""
        return _defaults(self.date, Source("default", text=self.name))


@cache
def _defaults(day: date, source: Source) -> dict[str, Value]:
    then = {name: (parameter, default_at(name, day)) for name, parameter in REGISTRY.parameters.items()}
    return {name: Value(value, source) for name, (parameter, value) in then.items() if value != parameter.default}


def inferred(spelled: Mapping[str, Place]) -> Dialect:
    """The dialect of a file that does not name one, from its keys as they were written."""
    for name, where in spelled.items():
        since = introduced(name)
        if since:
            return Dialect(NEWEST, f"{name} ({where}) exists since {since}")
    return Dialect(SEED, f"every name in it is as old as {SEED}")


def named(value: Value) -> Dialect | Problem:
    """The dialect that `dialect:` names."""
    written = str(value.value).lower()
    day = NAMES.get(written) or _day(written)
    if day and day >= SEED:
        return Dialect(day, f"dialect: {written} ({value.source})")
    what = f'dialect ("{value.value}") must be {", ".join(NAMES)} or a day since {SEED}, such as 2022-12-14'
    return Problem(what, value.source.where, did_you_mean(written, NAMES))


def _day(text: str) -> date | None:
    try:
        day = date.fromisoformat(text)
    except ValueError:
        return None
    return day if day.isoformat() == text else None  # newer Pythons read other forms too


def undecided(config: Config) -> list[Problem]:
    """A warning where no file says the dialect, old names alone chose 2021, and today's defaults train otherwise."""
    if config.dialect is None or config.dialect.date != SEED or config.written("dialect"):
        return []
    then_now = {name: (default_at(name, SEED), default_at(name, NEWEST)) for name in DECISIVE}
    left = [
        f"{name} {then} / {now}"
        for name, (then, now) in then_now.items()
        if not any(map(config.written, (name, *DECISIVE[name]))) and config.get(name) == then
    ]
    if not left:
        return []
    what = (
        f"no dialect is written and every name is old, so defaults are neox-2021's, not neox-2026's: {', '.join(left)}"
    )
    return [Problem(what, hint="write dialect: neox-2021 or neox-2026 to choose", severity="warning")]
