"""Where a file is not YAML: the parser's words turned into a sentence about the file.

libyaml says where it gave up and what it was doing; what a person did there is guessed from the line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from neoxargs.problems import Place, Problem


class At(Protocol):
    """A line and a column, from 0, as a place."""

    def __call__(self, line: int, column: int) -> Place: ...


class Trouble(NamedTuple):
    """What the parser reports: its words, where it stopped, and where the construct began."""

    words: str
    where: Place
    began: Place | None

    @property
    def character(self) -> str:
        """The character it stopped at; "" at the end of the file."""
        return self.where.text[self.where.column - 1 : self.where.column]

    @property
    def before(self) -> str:
        return self.where.text[: self.where.column - 1]


def worded(error: Any, at: At) -> Problem:
    """A YAMLError as a problem of the file."""
    words = str(getattr(error, "problem", None) or error)
    trouble = Trouble(words, _spot(error, "problem_mark", at) or at(0, 0), _spot(error, "context_mark", at))
    for needle, say in _SAYINGS.items():
        if needle in words:
            return say(trouble)
    return Problem(f"this is not YAML: {words}", trouble.where)


def _spot(error: Any, mark: str, at: At) -> Place | None:
    found = getattr(error, mark, None)
    return at(found.line, found.column) if found else None


def _stray_character(trouble: Trouble) -> Problem:
    if trouble.character == "\t":
        return _tab(trouble)
    what = f"a value cannot begin with `{trouble.character}`"
    return Problem(what, trouble.where, "put the value in quotes")


def _tab(trouble: Trouble) -> Problem:
    return Problem("a tab indents this line; YAML is indented by spaces", trouble.where, "replace the tab by spaces")


def _colon(trouble: Trouble) -> Problem:
    if ":" in trouble.before:
        hint = "if it belongs to the value, put the value in quotes"
        return Problem("a second `: ` on one line", trouble.where, hint)
    if trouble.before.startswith(" "):
        hint = "begin the line in the column of the keys around it"
        return Problem("this key is indented unlike the line above it", trouble.where, hint)
    hint = "look at the lines above it: each must be `key: value`"
    return Problem("YAML expects no `: ` here", trouble.where, hint)


def _no_colon(trouble: Trouble) -> Problem:
    hint = "write `key: value`, with a space after the colon"
    return Problem("this line has no `: ` between a key and a value", trouble.began or trouble.where, hint)


def _unclosed(opening: str, closing: str) -> Callable[[Trouble], Problem]:
    def say(trouble: Trouble) -> Problem:
        if not trouble.character:
            return Problem(f"this `{opening}` is never closed", trouble.began, f"close it with `{closing}`")
        what = f"a `,` or the closing `{closing}` is missing before this"
        return Problem(what, trouble.where, also=(trouble.began,) if trouble.began else ())

    return say


def _quote(trouble: Trouble) -> Problem:
    return Problem("this quote is never closed", trouble.began or trouble.where, "close it on the same line")


def _alias(trouble: Trouble) -> Problem:
    where = trouble.began or trouble.where
    sign = where.text[where.column - 1]
    what = f"`{sign}` at the beginning of a value has a meaning of its own in YAML, and needs a name after it"
    return Problem(what, where, "put the value in quotes if it is text")


def _escape(trouble: Trouble) -> Problem:
    escape = trouble.where.text[trouble.where.column - 1 : trouble.where.column + 1]
    hint = "use single quotes, or write `\\\\` where a backslash is meant"
    return Problem(f"`{escape}` means nothing in double quotes", trouble.where, hint)


def _surrogate(trouble: Trouble) -> Problem:
    what = "this escape is no character of its own (half of a surrogate pair)"
    return Problem(what, trouble.where, "write the character itself")


def _not_a_key(trouble: Trouble) -> Problem:
    if not trouble.before.strip():
        hint = "begin the line in the column of the keys it belongs to"
        return Problem("this line is indented like no line above it", trouble.where, hint)
    hint = "begin a new line; a quote inside 'single quotes' is written twice"
    return Problem("the value ends before this", trouble.where, hint)


def _not_an_item(trouble: Trouble) -> Problem:
    where = trouble.where
    return Problem(
        "a list of `- ` items stands above; a key cannot follow it here", where, "write the list below a key of its own"
    )


def _item(trouble: Trouble) -> Problem:
    return Problem("a list cannot begin here", trouble.where, "write `[a, b]`, or begin the list on the next line")


def _no_value(trouble: Trouble) -> Problem:
    if not trouble.character:
        return Problem("this ends inside `{ }` or `[ ]`", trouble.where, "close every bracket that is opened")
    if trouble.character in "]}":
        return Problem(f"this `{trouble.character}` closes nothing", trouble.where, "take it out, or open it before")
    return Problem(f"a value is missing before this `{trouble.character}`", trouble.where)


def _after_the_end(trouble: Trouble) -> Problem:
    return Problem("the configuration has ended before this", trouble.where, "keep everything in one `{ }`, or in none")


def _directive(trouble: Trouble) -> Problem:
    return Problem("a line that begins with `%` is an instruction to YAML", trouble.where, "take the line out")


_SAYINGS: dict[str, Callable[[Trouble], Problem]] = {
    "cannot start any token": _stray_character,
    "tab character": _tab,
    "mapping values are not allowed": _colon,
    "could not find expected ':'": _no_colon,
    "expected ',' or '}'": _unclosed("{", "}"),
    "expected ',' or ']'": _unclosed("[", "]"),
    "unexpected end of stream": _quote,
    "expected alphabetic or numeric": _alias,
    "unknown escape character": _escape,
    "Unicode character escape": _surrogate,
    "expected key": _not_a_key,
    "expected '-' indicator": _not_an_item,
    "sequence entries are not allowed": _item,
    "expected node content": _no_value,
    "expected <document start>": _after_the_end,
    "incompatible YAML document": _directive,
    "directive": _directive,
}
