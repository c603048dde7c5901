"""The result of the three passes: the contents of files and `--set`s, before anything is derived."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from neoxargs.base.problems import Place, Problem
from neoxargs.config.dialect import Dialect
from neoxargs.config.value import Value
from neoxargs.registry import Group

G = TypeVar("G", bound=Group)


class Draft(NamedTuple):
    """The user's values, each checked on its own, without defaults and derived values.

    values: by registry name.
    problems: all problems so far.
    auto: parameters set to `auto`, which counts as not set.
    broken: parameters or sections whose value is unknown because of a problem.
    section_places: where each section begins, including empty ones.
    open_places: places of `auto` and null, for values that a rule supplies.
    readable: False if a file is not YAML or has no keys; missing parameters are then not reported.
    """

    values: dict[str, Value]
    problems: list[Problem]
    dialect: Dialect
    auto: frozenset[str]
    broken: frozenset[str]
    section_places: dict[str, Place]
    open_places: dict[str, Place]
    readable: bool

    @property
    def sections(self) -> frozenset[str]:
        """The sections in the files, by their current names."""
        return frozenset(self.section_places)

    def group(self, cls: type[G]) -> G:
        """Return a group with the user's values and the dialect's defaults, before any rule has run."""
        values = {**self.dialect.defaults(), **self.values}
        return cls(**{p.attribute: values[p.name].value for p in cls.parameters.values() if p.name in values})
