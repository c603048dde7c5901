"""The history of GPT-NeoX's parameters: when a name was introduced or removed, and when a default changed.

A dialect is a date, and selects defaults by these tables. They begin with GPT-NeoX as of 28 February 2021, as the
registry does, and end with its main branch as of 20 May 2026. A name that was removed and restored later (whole classes
were, in April 2021 and March 2023) counts as present in between. `deepspeed` is not listed under April 2021, because
the switch is older than the class that was introduced then.

neox_history.json has the tables, which tests/support/data_tables.py makes from GPT-NeoX's commits. Before its first
date, a parameter has the registry's default. `log_interval` had the default 100 at SEED and none for two years
afterwards; it is treated as 100 throughout. `rms_norm_epsilon_under_root` and `warmup_from_zero`, parameters of deepy,
stand for changes in GPT-NeoX's code.
"""

from __future__ import annotations

from datetime import date
from functools import cache
from typing import Any

from neoxargs.base.shipped import table_beside
from neoxargs.registry import REGISTRY, normal

SEED = date(2021, 2, 28)
NEWEST = date(2026, 5, 20)


def default_at(name: str, day: date) -> Any:
    """Return the default of a parameter in GPT-NeoX of that day, or the registry's default if it had none.

    The result is ABSENT if the parameter is required or derived. Raises KeyError for an unknown name.
    """
    parameter = REGISTRY.find(name)
    if parameter is None:
        raise KeyError(name)
    return next((default for since, default in reversed(changes(name)) if since <= day), parameter.default)


def changed_defaults(day: date) -> dict[str, Any]:
    """Return name -> default in GPT-NeoX of that day, of the parameters for which the registry's default differs."""
    then = {name: default_at(name, day) for name in tables()["defaults"]}
    return {name: default for name, default in then.items() if default != REGISTRY.parameters[name].default}


def changes(name: str) -> tuple[tuple[date, Any], ...]:
    """Return the later defaults of a parameter, each with the date from which it holds."""
    later = tables()["defaults"].get(normal(name), ())
    return tuple((date.fromisoformat(since), default) for since, default in later)


def introduced(spelling: str) -> date | None:
    """Return the date on which GPT-NeoX introduced a name; None if SEED has it, or GPT-NeoX never had it."""
    return _dates("introduced").get(normal(spelling))


def removed(spelling: str) -> date | None:
    """Return the date on which GPT-NeoX removed a name, or None."""
    return _dates("removed").get(normal(spelling))


@cache
def _dates(table: str) -> dict[str, date]:
    return {name: date.fromisoformat(day) for day, names in tables()[table].items() for name in names}


def tables() -> dict[str, Any]:
    """Return `introduced` and `removed`, date -> names; and `defaults`, parameter -> dates with the new default."""
    return table_beside(__file__, "neox_history.json")
