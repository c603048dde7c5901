"""Which versions of DeepSpeed have a key, and with which default; and which torch a version needs.

receiver_versions.json has the differences between published versions, from the oldest that deepy supports to the newest
when it was made; tests/support/receiver_versions.py makes it from the distributions. A section that came or went as a
whole is listed in place of its keys. For a version outside of the list, the nearest listed one is assumed.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from neoxargs.base.shipped import table_beside


def numbers(version: str) -> tuple[int, ...]:
    """Return a version as at least three numbers that can be compared: `2.13.0+cpu` and `2.13` -> (2, 13, 0)."""
    found = [int(number) for number in re.findall(r"\d+", version.partition("+")[0])]
    return (*found, *[0] * (3 - len(found)))


def versions() -> list[str]:
    """Return the versions of DeepSpeed that were compared, oldest first."""
    return list(table()["versions"])


def before(version: str) -> str:
    """Return the compared version of DeepSpeed that precedes another one."""
    return versions()[versions().index(version) - 1]


def added_in(name: str) -> str:
    """Return the version that introduced a key or its section; empty if the oldest has it, or none does."""
    return _event("added", name)


def removed_in(name: str) -> str:
    """Return the version that removed a key or its section, or an empty string."""
    return _event("removed", name)


@cache
def refused() -> dict[str, str]:
    """Return key or section -> the version of DeepSpeed from which it is refused, whatever its value."""
    return _by_name("refused")


def default_in(name: str, version: str) -> Any:
    """Return the default in a version. Raises KeyError for a key whose default is the same in all."""
    return _in(table()["defaults"][name], version)


def default_changes() -> dict[str, list[list[Any]]]:
    """Return key -> the default in the oldest version and later ones, each with the version from which it holds."""
    changes: dict[str, list[list[Any]]] = table()["defaults"]
    return changes


def oldest_torch(package: str, version: str) -> str:
    """Return the oldest torch that a version of DeepSpeed or megatron-core accepts; empty if it names none."""
    found: str = _in([["0", ""], *table()["torch"][package]], version)
    return found


def _in(changes: list[list[Any]], version: str) -> Any:
    """Return the value in a version, of those that each hold from a version on."""
    return next((value for since, value in reversed(changes) if numbers(since) <= numbers(version)), changes[0][1])


def _event(event: str, name: str) -> str:
    """Return when something happened to a key, or to the nearest section that it is in."""
    by_name = _by_name(event)
    while name and name not in by_name:
        name = name.rpartition(".")[0]
    return by_name.get(name, "")


@cache
def _by_name(event: str) -> dict[str, str]:
    return {name: version for version, names in table()[event].items() for name in names}


def table() -> dict[str, Any]:
    """Return `versions`; `added`, `removed` and `refused`, version -> names; `defaults`; `torch`, by package."""
    return table_beside(__file__, "receiver_versions.json")
