"""A failure of the YAML parser, with access to the lines around it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from neoxargs.base.problems import Place
from neoxargs.resolve.yaml.line_patterns import line_content


class PlaceAt(Protocol):
    """Convert a line and a column, both from 0, to a place."""

    def __call__(self, line: int, column: int) -> Place: ...


class ParseFailure(NamedTuple):
    """The parser's message, where it stopped, and where the construct began."""

    words: str
    where: Place
    began: Place | None
    at: PlaceAt

    @property
    def character(self) -> str:
        """The character at which the parser stopped; "" at the end of the file."""
        return self.where.text[self.where.column - 1 : self.where.column]

    @property
    def before(self) -> str:
        return self.where.text[: self.where.column - 1]

    @property
    def begins_line(self) -> bool:
        return not self.before.strip()

    def last_above(self, wanted: Callable[[str], bool], skip: int = 0) -> Place | None:
        """Return the last line that `wanted` accepts, searching upwards from `skip` lines above the failure."""
        lines = (self.at(number, 0) for number in range(self.where.line - 1 - skip, -1, -1))
        return next((line for line in lines if wanted(line.text)), None)

    def lines(self) -> Iterator[Place]:
        """Yield all lines of the file."""
        number = 0
        while (line := self.at(number, 0)).line == number + 1:  # beyond the end, the place is in the last line
            yield line
            number += 1

    def above(self) -> Place | None:
        """Return the first of the consecutive lines above without `: `, which YAML reads as part of a value or key."""
        first = None
        for number in range(self.where.line - 2, -1, -1):
            place = self.at(number, 0)
            content = place.text.strip()
            if re.search(r":(\s|$)", content) or content.startswith(("#", "- ")) or content in _OPEN:
                break
            first = line_content(place) if content else first
        return first


#: Lines without `: ` that are not part of a value.
_OPEN = ("{", "}", "},", "[", "]", "],", "---")
