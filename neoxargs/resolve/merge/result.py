"""What the three passes give: what the files and `--set`s say, before anything is derived from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from neoxargs.problems import Place, Problem
from neoxargs.registry import Group
from neoxargs.resolve.dialect import Dialect
from neoxargs.resolve.value import Value

G = TypeVar("G", bound=Group)


@dataclass(kw_only=True)
class Draft:
    """What was written, checked one by one but not yet completed.

    values: only what was written, by registry name.
    problems: everything that is wrong with it so far.
    auto: parameters written as `auto`, which counts as not written.
    broken: parameters (or sections) whose value is unknown because of a problem with it.
    section_places: where each section was begun, even an empty one.
    open_places: where `auto`, or nothing, was written for a value that a rule supplies.
    readable: False when a file is no YAML or has no keys, so that what is missing cannot be told.
    """

    values: dict[str, Value]
    problems: list[Problem]
    dialect: Dialect
    auto: frozenset[str] = frozenset()
    broken: frozenset[str] = frozenset()
    section_places: dict[str, Place] = field(default_factory=dict)
    open_places: dict[str, Place] = field(default_factory=dict)
    readable: bool = True

    @property
    def sections(self) -> frozenset[str]:
        """The sections written, by today's names."""
        return frozenset(self.section_places)

    def group(self, cls: type[G]) -> G:
        """A group's written values over its defaults in this dialect, before any rule has run."""
        values = {**self.dialect.defaults(), **self.values}
        return cls(**{p.attribute: values[p.name].value for p in cls.parameters.values() if p.name in values})
