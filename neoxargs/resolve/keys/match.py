"""A key that is not a parameter, and what it matches."""

from __future__ import annotations

from typing import Literal

from neoxargs.base.problems import Place
from neoxargs.base.record import Record
from neoxargs.registry import REGISTRY


class Key(Record):
    """A key that is neither a parameter nor a section."""

    name: str
    """The dotted name, with `_` instead of `-`."""
    written: str
    """The key as spelled in the file."""
    where: Place
    is_section: bool = False
    """True if its value is a mapping, so that a section was meant."""

    @property
    def section(self) -> str:
        return self.name.rpartition(".")[0]

    @property
    def word(self) -> str:
        return self.name.rpartition(".")[2]


class Match(Record):
    """What an unknown key was probably meant to be."""

    found_by: Literal["letters", "inside a value", "other program", "same word", "similar"]
    advice: str
    """What to write instead, for the hint."""
    meant: tuple[str, ...] = ()
    """The parameters or sections, by their registry names."""
    spelling: str = ""
    """The one spelling that the key resembles; empty if there are several, or if the match is not a resemblance."""


def is_known(name: str) -> bool:
    """True for the dotted name of a parameter or a section."""
    return name in REGISTRY.sections or REGISTRY.find(name) is not None


def current_section(name: str) -> str:
    """Return the current name of a section."""
    group = REGISTRY.sections.get(name)
    return group.section if group else name


def keys_of(section: str) -> dict[str, str]:
    """Return key -> parameter for every key that is valid in a section, including old spellings."""
    names = {full: full for full in [*REGISTRY.parameters, *REGISTRY.sections]}
    names |= {old: parameter.name for old, parameter in REGISTRY.renamed.items()}
    return {key.rpartition(".")[2]: full for key, full in names.items() if key.rpartition(".")[0] == section}
