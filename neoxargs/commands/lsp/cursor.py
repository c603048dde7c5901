"""The key at a position of a YAML text, found by indentation: while someone types, the text is often not valid YAML."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from neoxargs.registry import normal

#: Indentation, key, and what follows it, of a line of a block mapping; quotes and the dash of a list are left out.
_LINE = re.compile(r"(?P<indent>[ ]*)(?:- )?[\"']?(?P<key>[A-Za-z_][\w./-]*)[\"']?(?P<rest>\s*:(?:\s|$).*)?")
_WORD = re.compile(r"[\w./-]*")


class Cursor(NamedTuple):
    """What is at a position."""

    section: str
    """Dotted name of the section that the line is in; "" at the top level."""
    key: str
    """Key of the line as written; "" if there is none yet."""
    in_value: bool
    """Whether the position is behind the colon."""
    begin: int
    """Column, from 0, at which the word before the position begins: what a completion replaces."""

    @property
    def name(self) -> str:
        """The dotted name of the key, as the registry spells it."""
        return normal(f"{self.section}.{self.key}" if self.section else self.key)


def cursor_at(lines: Sequence[str], line: int, column: int) -> Cursor:
    """Return what is at a position; line and column count from 0."""
    text = lines[line] if line < len(lines) else ""
    found = _LINE.match(text)
    indent = len(found["indent"]) if found else len(text) - len(text.lstrip(" "))
    colon = found.start("rest") + found["rest"].index(":") if found and found["rest"] else None
    before = text[:column]
    begin = column - len(_WORD.match(before[::-1])[0])  # type: ignore[index] # matches "" too
    return Cursor(
        _section(lines[:line], indent), found["key"] if found else "", colon is not None and column > colon, begin
    )


def _section(above: Sequence[str], indent: int) -> str:
    """Return the keys, with dots between them, under which a line with this indentation is."""
    keys: list[str] = []
    for text in reversed(above):
        found = _LINE.match(text)
        if found and found["rest"] and len(found["indent"]) < indent:
            indent = len(found["indent"])
            keys.insert(0, found["key"])
        if indent == 0:
            break
    return normal(".".join(keys))
