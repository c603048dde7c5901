"""Which versions of DeepSpeed and megatron-core have a key or an argument, and with which default.

receiver_versions.json has the differences between published versions, from the oldest that deepy supports to the newest
when it was made; tests/support/receiver_versions.py makes it from source distributions. A section that came or went as
a whole is listed in place of its keys. For a version outside of the list, the nearest listed one is assumed.
"""

from __future__ import annotations

import json
import os.path
import re
from functools import cache
from typing import Any, Literal

Receiver = Literal["deepspeed", "megatron-core"]


def numbers(version: str) -> tuple[int, ...]:
    """Return a version as numbers that can be compared: `2.13.0+cpu` -> (2, 13, 0)."""
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("+")[0]))


def versions(receiver: Receiver) -> list[str]:
    """Return the versions that were compared, oldest first."""
    return list(tables()[receiver]["versions"])


def added_in(name: str, receiver: Receiver = "deepspeed") -> str:
    """Return the version that introduced a key or its section; empty if the oldest has it, or none does."""
    return _event(receiver, "added", name)


def removed_in(name: str, receiver: Receiver = "deepspeed") -> str:
    """Return the version that removed a key or its section, or an empty string."""
    return _event(receiver, "removed", name)


@cache
def refused() -> dict[str, str]:
    """Return key or section -> the version of DeepSpeed from which it is refused, whatever its value."""
    return _by_name("deepspeed", "refused")


def default_in(name: str, version: str, receiver: Receiver = "deepspeed") -> Any:
    """Return the default in a version. Raises KeyError for a key whose default is the same in all."""
    changes = tables()[receiver]["defaults"][name]
    return next((value for since, value in reversed(changes) if numbers(since) <= numbers(version)), changes[0][1])


def default_changes(receiver: Receiver = "deepspeed") -> dict[str, list[list[Any]]]:
    """Return key -> the default in the oldest version and later ones, each with the version from which it holds."""
    changes: dict[str, list[list[Any]]] = tables()[receiver]["defaults"]
    return changes


def _event(receiver: Receiver, event: str, name: str) -> str:
    """Return when something happened to a key, or to the nearest section that it is in."""
    by_name = _by_name(receiver, event)
    while name and name not in by_name:
        name = name.rpartition(".")[0]
    return by_name.get(name, "")


@cache
def _by_name(receiver: Receiver, event: str) -> dict[str, str]:
    return {name: version for version, names in tables()[receiver][event].items() for name in names}


@cache
def tables() -> dict[str, Any]:
    """Return receiver -> `versions`; `added`, `removed` and `refused`, version -> names; and `defaults`."""
    with open(os.path.join(os.path.dirname(__file__), "receiver_versions.json"), encoding="utf-8") as file:
        found: dict[str, Any] = json.load(file)
    return found
