"""The values of a script's variables: characters with their places, and what cannot be known without running it."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from neoxargs.base.files import Text
from neoxargs.base.problems import Place, listed
from neoxargs.migrate.shell.placeholders import is_placeholder, placeholder_at

#: Alternatives of a value that messages show.
_SHOWN = 4


class Unknown(str):
    """An expansion whose value is not known; the text is the expansion as the script has it.

    why: what makes it unknown, a clause; empty for a variable that the script does not set. names: the variables that
    would make it known. is_unset: it is a variable without a value, so a test for that (`-z`) can be answered.
    choices: the values that it has in the branches of a condition.
    """

    why: str
    names: tuple[str, ...]
    is_unset: bool
    choices: tuple[str, ...]

    @classmethod
    def of(
        cls, text: str, why: str = "", names: Iterable[str] = (), is_unset: bool = False, choices: Iterable[str] = ()
    ) -> Unknown:
        self = cls(text)
        self.why, self.names, self.is_unset = why, tuple(dict.fromkeys(names)), is_unset
        self.choices = tuple(dict.fromkeys(choices))
        return self

    @property
    def shown_choices(self) -> str:
        """The values that it can have, as a clause such as `24 or 32`; empty if there is no list of them."""
        return listed([f"`{each}`" if each else "nothing" for each in self.choices], "or", most=_SHOWN)


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
        content = self._lines[line - 1] if line <= len(self._lines) else ""
        return Place(self.name, line, index - self._starts[line - 1] + 1, content, max(1, width))

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


def merged(name: str, values: Sequence[Value | None], why: str, names: Sequence[str]) -> Value:
    """Return what is known of a variable that has one of several values; None stands for no value.

    The words that all of them begin or end with stay, and an Unknown stands for the rest. why, names: as in Unknown.
    """
    known = [value for value in values if value is not None]
    first = known[0]
    words = [[part for chars in value for part in split(chars) if part] for value in known]
    words += [[]] * (len(known) < len(values))
    texts = [[text_of(part) for part in each] for each in words]
    fewest = min(map(len, texts))
    begin = next((i for i in range(fewest) if len({each[i] for each in texts}) > 1), fewest)
    rest = fewest - begin
    end = next((i for i in range(rest) if len({each[-1 - i] for each in texts}) > 1), rest)
    choices = [choice for each in words for choice in _choices(each[begin : len(each) - end])]
    names = [*names, *([name] if len(known) < len(values) else [])]
    also = [unknown for value in known for chars in value for unknown in unknowns_of(chars)]
    unknown = Unknown.of(f"${name}", why, [*names, *(each for one in also for each in one.names)], choices=choices)
    index = next((chars[0][1] for chars in first if chars), 0)
    parts = [*words[0][:begin], [(unknown, index)], *words[0][len(words[0]) - end :]]
    if all(len(value) == 1 for value in known):
        spaced = [pair for part in parts for pair in [*part, (" ", index)]]
        return [spaced[:-1]]
    return parts


def _choices(words: Sequence[Chars]) -> Sequence[str]:
    """Return the values of one branch: one, or those of the branches in it."""
    unknowns = unknowns_of(words[0]) if len(words) == 1 and len(words[0]) == 1 else ()
    return unknowns[0].choices if unknowns and unknowns[0].choices else [" ".join(map(text_of, words))]
