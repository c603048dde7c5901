"""Conditions on a switch: whether its value leaves another parameter without effect."""

from __future__ import annotations

from typing import Any

from neoxargs.base.record import Record
from neoxargs.config.config import Config
from neoxargs.registry import ABSENT


class Is(Record):
    """Condition: the switch has one of these values, ignoring case."""

    values: tuple[Any, ...]

    def holds(self, config: Config, switch: str) -> bool:
        return _lower(config.get(switch)) in self.values


class IsNot(Record):
    """Condition: the switch has none of these values, ignoring case."""

    values: tuple[Any, ...]

    def holds(self, config: Config, switch: str) -> bool:
        value = config.get(switch)
        return value is not ABSENT and _lower(value) not in self.values


class NoneOf(Record):
    """Condition: the switch is a list without any of these values."""

    values: tuple[Any, ...]

    def holds(self, config: Config, switch: str) -> bool:
        value = config.get(switch)
        return isinstance(value, list) and not set(self.values) & set(value)


class Off:
    """Condition: the switch is off (or 0) by default. If the user turned it off, there is no warning."""

    def holds(self, config: Config, switch: str) -> bool:
        return not config.is_set(switch) and _lower(config.get(switch)) in (False, None, "none", "")


class NoFastWriter:
    """Condition: no section checkpoint.writer is set, or its type (PYTHON, MOCK) does not use asynchronous I/O."""

    def holds(self, config: Config, switch: str) -> bool:
        section = switch.rpartition(".")[0]
        is_set = section in config.sections or any(name.startswith(f"{section}.") for name in config.values)
        return not is_set or _lower(config.get(switch)) != "fast"


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


Condition = Is | IsNot | NoneOf | Off | NoFastWriter
OFF = Off()
