"""Where the YAML parser gave up, with the lines around it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple, Protocol

from neoxargs.problems import Place
from neoxargs.resolve.yaml.line_patterns import line_content


class PlaceAt(Protocol):
    """A line and a column, from 0, as a place."""

    def __call__(self, line: int, column: int) -> Place: ...


class ParseFailure(NamedTuple):
    """What the parser reports: its words, where it stopped, and where the construct began."""

    words: str
    where: Place
    began: Place | None
    at: PlaceAt

    @property
    def character(self) -> str:
        """The character it stopped at; "" at the end of the file."""
        return self.where.text[self.where.column - 1 : self.where.column]

    @property
    def before(self) -> str:
        return self.where.text[: self.where.column - 1]

    @property
    def begins_line(self) -> bool:
        return not self.before.strip()

    def last_above(self, wanted: Callable[[str], bool], skip: int = 0) -> Place | None:
        """The last line whose text is wanted, from the line itself upwards; `skip`: so many lines further up."""
        lines = (self.at(number, 0) for number in range(self.where.line - 1 - skip, -1, -1))
        return next((line for line in lines if wanted(line.text)), None)

    def above(self) -> Place | None:
        """The first of the lines just above that have no `: ` and so became part of a value (or of a key)."""
        first = None
        for number in range(self.where.line - 2, -1, -1):
            place = self.at(number, 0)
            content = place.text.strip()
            if re.search(r":(\s|$)", content) or content.startswith(("#", "- ")) or content in _OPEN:
                break
            first = line_content(place) if content else first
        return first


#: Lines that are no value, although they have no `: `.
_OPEN = ("{", "}", "},", "[", "]", "],", "---")
