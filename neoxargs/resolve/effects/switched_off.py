"""Parameters that disable others: which values of a parameter leave another one without effect, and why.

switched_off.json describes our train.py with DeepSpeed. It has no row if only the number of ranks disables a parameter,
because the same file is used on other layouts. A row has
    off: names of the parameters that it concerns; a trailing `*` matches any suffix
    when: switch -> condition; all of them must hold
    because: the reason; follows "has no effect:" in the message
    instead: the hint, if there is one: how to make the parameter take effect

Conditions, in which upper and lower case are the same:
    "off": the switch is off (or 0) by default; if the user turned it off, there is no warning
    {"is": values}, {"is not": values}: it has one of the values, or none of them
    {"none of": values}, {"only": values}: it is a list without any of the values, or without any other
    "no fast writer": no section checkpoint.writer is set, or its type (PYTHON, MOCK) uses no asynchronous I/O
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from neoxargs.base.record import Record
from neoxargs.base.shipped import table_beside
from neoxargs.config.config import Config
from neoxargs.registry import ABSENT


class SwitchedOff(Record):
    """A row of the table."""

    names: frozenset[str]
    prefixes: tuple[str, ...]
    when: Mapping[str, Any]
    reason: str
    instead: str

    def applies(self, config: Config, name: str) -> bool:
        """True if the row contains the parameter and every condition holds for a known value."""
        if name in self.when or not (name in self.names or name.startswith(self.prefixes)):
            return False
        return not any(
            switch in config.broken or not _holds(condition, config, switch) for switch, condition in self.when.items()
        )


_KINDS: dict[str, Callable[[Any, list[Any]], bool]] = {
    "is": lambda value, values: value in values,
    "is not": lambda value, values: value is not ABSENT and value not in values,
    "none of": lambda value, values: isinstance(value, list) and not {*values} & {*value},
    "only": lambda value, values: isinstance(value, list) and {*value} <= {*values},
}


def switched_off_by(config: Config, name: str) -> SwitchedOff | None:
    """Return the row that disables a parameter in this configuration; None if the parameter may have an effect."""
    return next((row for row in table() if row.applies(config, name)), None)


@cache
def table() -> tuple[SwitchedOff, ...]:
    """Return the rows of all subjects."""
    return tuple(_row(**row) for rows in table_beside(__file__).values() for row in rows)


def _row(off: list[str], when: Mapping[str, Any], because: str, instead: str = "") -> SwitchedOff:
    prefixes = tuple(name[:-1] for name in off if name.endswith("*"))
    return SwitchedOff(frozenset(off), prefixes, when, because, instead)


def _holds(condition: Any, config: Config, switch: str) -> bool:
    if condition == "off" and config.is_set(switch):
        return False
    value = config.get(switch)
    value = value.lower() if isinstance(value, str) else value
    if condition == "off":
        return value in (False, None, "none", "")
    if condition == "no fast writer":
        section = switch.rpartition(".")[0]
        is_set = section in config.sections or any(name.startswith(f"{section}.") for name in config.values)
        return not is_set or value != "fast"
    ((kind, values),) = condition.items()
    return _KINDS[kind](value, values)
