"""What a key is that no parameter has, and what is known of it."""

from __future__ import annotations

from typing import Literal, NamedTuple

from neoxargs.problems import Place
from neoxargs.registry import REGISTRY


class Key(NamedTuple):
    """A key that is no parameter and no section, as it was written."""

    name: str
    """Dotted and spelt with `_`."""
    written: str
    where: Place
    is_section: bool = False
    """Are there keys below it?"""

    @property
    def section(self) -> str:
        return self.name.rpartition(".")[0]

    @property
    def word(self) -> str:
        return self.name.rpartition(".")[2]


class Match(NamedTuple):
    """What was probably meant by an unknown key."""

    found_by: Literal["letters", "other program", "same word", "similar"]
    advice: str
    """What to write instead."""
    meant: tuple[str, ...] = ()
    """The parameters or sections, by their registry names."""
    spelling: str = ""
    """The one spelling that the key is similar to, where nothing but its letters speaks for it."""


def is_known(name: str) -> bool:
    """Is it a parameter or a section, by its dotted name?"""
    return name in REGISTRY.sections or REGISTRY.find(name) is not None


def keys_of(section: str) -> dict[str, str]:
    """Key -> parameter for every key that may be written in a section, old spellings too."""
    names = {full: full for full in [*REGISTRY.parameters, *REGISTRY.sections]}
    names |= {old: parameter.name for old, parameter in REGISTRY.renamed.items()}
    return {key.rpartition(".")[2]: full for key, full in names.items() if key.rpartition(".")[0] == section}
