"""The settings of Transformers' TrainingArguments, Accelerate's configuration and Megatron-LM's command, by version.

other_keys.json is made by tests/support/other_versions.py. A key that the first of the compared versions lacks has
`since`, one that the last lacks or refuses has `until`, the first compared version that does so.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Literal

from neoxargs.base.record import Record
from neoxargs.base.shipped import table_beside
from neoxargs.registry.receivers import numbers


class Key(Record):
    """What is known of a key. type: names of types with `|` between them; of flags, also switch, many and any."""

    type: str
    choices: tuple[str, ...] = ()
    former: Mapping[str, str] = MappingProxyType({})
    """Choice -> the version that removed it."""
    none: bool = False
    """Whether it can be null."""
    since: str = ""
    until: str = ""
    instead: str = ""
    """What replaces it."""
    words: tuple[str, ...] = ()
    """Of a text of several words, the choices of each."""
    refused: Literal["", "choice", "type"] = ""
    """What the program refuses at its start: other values than the choices, or values of another type."""
    least: float | None = None
    """The smallest number that it does not refuse."""
    whole: bool = False
    """Whether it refuses a fraction above 1."""
    only_with: Mapping[str, str] = MappingProxyType({})
    """The values of other keys with which alone it refuses a type."""
    default: Any = None
    computed: bool = False
    """Whether the source does not say the default as a literal."""
    dest: str = ""
    """Of a flag, the setting that it gives, if that has another name."""
    off: bool = False
    """Whether a flag without a value makes its setting false."""


class Step(Record):
    """What a program does with its settings at its start: it asserts something, or sets one.

    when: the condition of the step, "" for none. check: what is asserted. set, to: a setting and its new value, "" if
    that does not follow from settings. since: the version from which on it is asserted.
    """

    when: str = ""
    check: str = ""
    set: str = ""
    to: str = ""
    since: str = ""


def versions(program: str) -> tuple[str, ...]:
    """Return the versions that were compared, oldest first."""
    return tuple(table_beside(__file__)[program]["versions"])


def earlier(program: str) -> tuple[str, ...]:
    """Return the versions before their numbers began again, as those of Megatron-LM did with its core."""
    found = versions(program)
    restarts = [at for at in range(1, len(found)) if numbers(found[at]) < numbers(found[at - 1])]
    return found[: restarts[-1]] if restarts else ()


@cache
def keys(program: str, section: str = "") -> dict[str, Key]:
    """Return the keys that any of the versions has."""
    rows = table_beside(__file__)[program]["sections"][section]
    return {
        key: Key(**row | {name: tuple(row.get(name, ())) for name in ("choices", "words")}) for key, row in rows.items()
    }


@cache
def steps(program: str) -> tuple[Step, ...]:
    """Return what the newest version asserts of its settings, in its order."""
    return tuple(
        Step(**{"when" if key == "if" else key: text for key, text in row.items()})
        for row in table_beside(__file__)[program]["steps"]
    )
