"""Where the keys of a TOML file are: tomllib returns values without places."""

from __future__ import annotations

import re
from collections.abc import Sequence

from neoxargs.base.problems import Place

#: One part of a dotted key.
PART = r"(?:\"[^\"\n]*\"|'[^'\n]*'|[\w-]+)"
_DOTTED = rf"{PART}(?:[ \t]*\.[ \t]*{PART})*"
#: A line with the header of a table, or with a key and its value.
_LINE = re.compile(rf"^[ \t]*(?:\[[ \t]*(?P<header>{_DOTTED})[ \t]*\]|(?P<key>{_DOTTED})[ \t]*=)", re.MULTILINE)
_COMMENT = re.compile(r"(?:^|\s)#.*")

Path = tuple[str, ...]


class Keys:
    """The keys of a text in the order in which they are written.

    written: of each key, what is before it in its path included, the ranges of characters where it stands.
    """

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text
        self.written: dict[Path, list[tuple[int, int]]] = {}
        table: Path = ()
        for line in _LINE.finditer(text):
            kind = "header" if line["header"] else "key"
            path = tuple(part.strip("\"'") for part in re.findall(PART, line[kind]))
            if kind == "header":
                table = path
            self.written.setdefault(path if kind == "header" else (*table, *path), []).append(line.span(kind))

    def range(self, path: Path) -> tuple[int, int]:
        """Return the range of a key; in an inline table, that of its name in the line; otherwise, that of its table."""
        if path in self.written or not path:
            return self.written.get(path, [(0, 0)])[0]
        _, start = outer = self.range(path[:-1])
        found = re.compile(rf"(?<![\w-])[\"']?{re.escape(path[-1])}[\"']?[ \t]*[=.]").search(self.text, start)
        line = self.text.find("\n", start)
        return (found.start(), found.end() - 1) if found and (line < 0 or found.start() < line) else outer

    def key(self, path: Path) -> Place:
        """Return the place of a key."""
        return self.place(*self.range(path))

    def value(self, path: Path, item: str = "") -> Place:
        """Return the place of a value, or of a text in a list."""
        _, end = self.range(path)
        equals = self.text.find("=", end) + 1
        if not equals:
            return self.key(path)
        if item and (at := self.text.find(item, equals)) >= 0:
            return self.place(at, at + len(item))
        found = re.compile(r"\s*([^\n#,}]*[^\s#,}])?").match(self.text, equals)
        return self.place(*found.span(1)) if found and found[1] else self.key(path)

    def mistake(self, what: str, at: str) -> Place:
        """Return the place of what tomllib cannot read. at: where it stopped, which can be lines below the mistake."""
        lines = self.lines()
        text, stopped = "\n".join(lines), re.match(r"line (\d+), column (\d+)", at)
        if not stopped and (quote := _open_quote(what, text)):
            start = text.rfind(quote)
            line = text.count("\n", 0, start) + 1
            return Place(self.name, line, start - text.rfind("\n", 0, start), lines[line - 1], len(quote))
        line, column = (int(stopped[1]), int(stopped[2])) if stopped else (len(lines), len(lines[-1]) + 1)
        if not stopped or (what in ("Unclosed array", "Invalid value") and _LINE.match(lines[line - 1])):
            while line > 1 and not _COMMENT.sub("", lines[line - 1][: column - 1]).strip():
                line -= 1
                column = len(_COMMENT.sub("", lines[line - 1]).rstrip()) + 1
        return Place(self.name, line, column, lines[line - 1])

    def place(self, start: int, end: int) -> Place:
        line = self.text.count("\n", 0, start)
        begin = self.text.rfind("\n", 0, start) + 1
        return Place(self.name, line + 1, start - begin + 1, self.lines()[line], max(1, end - start))

    def lines(self) -> Sequence[str]:
        return self.text.replace("\r\n", "\n").split("\n")


def _open_quote(what: str, text: str) -> str:
    """Return the quotes of the last text if it was not closed before the end of the file, otherwise ""."""
    if what == "Unterminated string":
        return '"' * (3 if text.count('"""') % 2 else 1)
    found = re.fullmatch('Expected "(\'+)"', what)
    return found[1] if found else ""
