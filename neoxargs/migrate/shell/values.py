"""The values of a script's variables: characters with their places, and what cannot be known without running it."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from neoxargs.base.files import Text
from neoxargs.base.problems import Place
from neoxargs.migrate.shell.placeholders import is_placeholder, placeholder_at


class Unknown(str):
    """An expansion whose value is not known; the text is the expansion as the script has it.

    why: what makes it unknown, a clause; empty for a variable that the script does not set. names: the variables that
    would make it known. is_unset: it is a variable without a value, so a test for that (`-z`) can be answered.
    where: the condition or loop that it depends on, if that is not known.
    """

    why: str
    names: tuple[str, ...]
    is_unset: bool
    where: Place | None

    @classmethod
    def of(
        cls,
        text: str,
        why: str = "",
        names: Iterable[str] = (),
        is_unset: bool = False,
        where: Place | None = None,
        because: Sequence[Unknown] = (),
    ) -> Unknown:
        """because: the unknown values that it is computed from."""
        self = cls(text)
        self.why, self.is_unset = why, is_unset
        self.names = tuple(dict.fromkeys([*names, *(name for each in because for name in each.names)]))
        self.where = where or next((each.where for each in because if each.where), None)
        return self


#: A word's characters, each with its index in the script. An Unknown takes the place of one character.
Chars = Sequence[tuple[str, int]]
#: The value of a variable: one element, or those of an array.
Value = Sequence[Chars]


class Word(NamedTuple):
    """A word of a command and its place; for a word from a variable, the place of the assignment."""

    text: str
    place: Place
    unknowns: tuple[Unknown, ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether it has no unexpanded variable or command substitution."""
        return not self.unknowns

    @property
    def is_unknown(self) -> bool:
        """Whether nothing of it is known."""
        return bool(self.unknowns) and self.text == "".join(self.unknowns)

    @property
    def is_placeholder(self) -> bool:
        """Whether it has a placeholder in it, such as `<Specify path>`."""
        return is_placeholder(self.text)


class Source:
    """A script's text, from which the places of its words are taken."""

    def __init__(self, text: Text) -> None:
        self.name, self.text = text.name, text.text.replace("\r\n", "\n")
        self._lines = self.text.split("\n")
        self._starts = [0, *(match.end() for match in re.finditer("\n", self.text))]

    def place(self, index: int, width: int = 1) -> Place:
        line = bisect_right(self._starts, index)
        return Place(self.name, line, index - self._starts[line - 1] + 1, self._lines[line - 1], max(1, width))

    def word(self, chars: Chars) -> Word:
        return Word(text_of(chars), self.place(chars[0][1] if chars else 0, len(chars)), unknowns_of(chars))


def text_of(chars: Chars) -> str:
    return "".join(character for character, _ in chars)


def unknowns_of(chars: Chars) -> tuple[Unknown, ...]:
    return tuple(character for character, _ in chars if isinstance(character, Unknown))


def split(value: Chars) -> list[Chars]:
    """Split a variable's value at spaces, except inside placeholders. Parts may be empty."""
    text = "".join(character[:1] for character, _ in value)
    parts, end = list[list[tuple[str, int]]]([[]]), 0
    for number, pair in enumerate(value):
        if number >= end:
            end = number + len(placeholder_at(text, number))
        if pair[0].isspace() and number >= end:
            parts.append([])
        else:
            parts[-1].append(pair)
    return list(parts)
