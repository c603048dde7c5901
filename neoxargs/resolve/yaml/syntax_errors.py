"""Turn messages of the YAML parser into problems that name the likely mistake.

libyaml reports where it stopped and what it was parsing; the mistake is inferred from the lines around that place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from neoxargs.base.problems import Edit, Place, Problem
from neoxargs.resolve.yaml.brackets import bracket_problem
from neoxargs.resolve.yaml.line_patterns import is_conflict_mark, line_content, line_problem
from neoxargs.resolve.yaml.parse_failure import ParseFailure, PlaceAt

#: Spaces per level, where a file does not show what its author uses.
STEP = "  "


def syntax_problem(error: Any, at: PlaceAt) -> Problem:
    """Convert a YAMLError to a problem."""
    words = str(getattr(error, "problem", None) or error)
    failure = ParseFailure(words, _place(error, "problem_mark", at) or at(0, 0), _place(error, "context_mark", at), at)
    # First, because a conflict marker causes all kinds of errors below it.
    if (mark := failure.last_above(is_conflict_mark)) and (problem := line_problem(mark)):
        return problem
    for part, problem_of in _BY_PARSERS_WORDS.items():
        if part in words:
            return problem_of(failure)
    return Problem(f"invalid YAML: {words}", failure.where, id="yaml-syntax")


def _place(error: Any, mark: str, at: PlaceAt) -> Place | None:
    position = getattr(error, mark, None)
    return at(position.line, position.column) if position else None


def _stray_character(failure: ParseFailure) -> Problem:
    if failure.character == "\t":
        return _tab(failure)
    if failure.begins_line and (problem := line_problem(failure.where)):
        return problem
    what = f"a value cannot begin with `{failure.character}`"
    return Problem(what, failure.where, "put the value in quotes", id="yaml-reserved-character")


def _constant(what: str, hint: str, *, id: str) -> Callable[[ParseFailure], Problem]:
    return lambda failure: Problem(what, failure.where, hint, id=id)


_DIRECTIVE = _constant("a line that begins with `%` is a YAML directive", "remove this line", id="yaml-directive")


def _tab(failure: ParseFailure) -> Problem:
    what, hint = "this line is indented with a tab; YAML requires spaces", "replace the tab with spaces"
    return Problem(what, failure.where, hint, id="yaml-tab", edits=tuple(_without_tabs(failure)))


def _without_tabs(failure: ParseFailure) -> Iterator[Edit]:
    """Yield the edits that indent with spaces: all lines of a file with tabs only, or else this line."""
    lines = list(failure.lines())
    if not any(_indentation(line.text) for line in lines if _has_content(line.text)):
        for line in lines:
            tabs = len(line.text) - len(line.text.lstrip("\t"))
            if tabs and line.text.strip():
                yield _indented(line, STEP * tabs)
        return
    before = failure.last_above(_has_content, skip=1)
    if not failure.begins_line or not before:
        return
    spaces = _indentation(before.text)
    if re.search(r":\s*(#.*)?$", before.text):  # a section, so that this line is inside
        after = next((line.text for line in lines[failure.where.line :] if _has_content(line.text)), "")
        spaces = max(spaces + len(STEP), _indentation(after))
    yield _indented(failure.where, " " * spaces)


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip(" ")) if line.strip() else 0


def _indented(where: Place, spaces: str) -> Edit:
    """Return the edit that indents a line by these spaces."""
    width = len(where.text) - len(where.text.lstrip(" \t"))
    return Edit(where._replace(column=1, width=width), "replace", spaces)


def _colon(failure: ParseFailure) -> Problem:
    if ":" in failure.before:
        hint = "put the value in quotes if the colon belongs to it"
        return Problem("this line has a second `: `", failure.where, hint, id="yaml-second-colon")
    if line := failure.above():
        return _no_key(line)
    if failure.before.startswith(" "):
        hint = "align this key with the keys around it"
        what = "this key is indented differently from the line above it"
        key = failure.before.strip()
        where = failure.where._replace(column=failure.where.text.index(key) + 1, width=max(1, len(key)))
        before = failure.last_above(_has_content, skip=1)
        edits = (_indented(where, " " * _indentation(before.text)),) if before else ()
        return Problem(what, where, hint, id="yaml-indentation", edits=edits)
    hint = "check the lines above: each must be `key: value`"
    return Problem("unexpected `: `", failure.where, hint, id="yaml-second-colon")


def _has_content(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _no_key(line: Place) -> Problem:
    hint = "write `key: value`, with a space after the colon"
    what = "this line has no `: ` between key and value"
    return line_problem(line) or Problem(what, line, hint, id="yaml-missing-colon")


def _quote(failure: ParseFailure) -> Problem:
    what, hint = "this quote is never closed", "add the closing quote on the same line"
    return Problem(what, failure.began or failure.where, hint, id="yaml-unclosed-quote")


def _alias(failure: ParseFailure) -> Problem:
    where = failure.began or failure.where
    sign = where.text[where.column - 1]
    meaning = "`*name` refers to an anchor `&name`" if sign == "*" else "`&name` marks an anchor"
    what = f"`{sign}` at the start of a value is reserved in YAML: {meaning}"
    return Problem(what, where, "put the value in quotes if it is meant as a string", id="yaml-reserved-character")


def _escape(failure: ParseFailure) -> Problem:
    escape = failure.where.text[failure.where.column - 1 : failure.where.column + 1]
    hint = "use single quotes, or write `\\\\` for a backslash"
    return Problem(f"`{escape}` is not a valid escape in double quotes", failure.where, hint, id="yaml-unknown-escape")


def _not_a_key(failure: ParseFailure) -> Problem:
    if failure.character == "-" and failure.begins_line:
        what = "a list item is not allowed between `key: value` lines"
        hint = "remove the `-`, or write the list below a key, as its value"
        return Problem(what, failure.where, hint, id="yaml-misplaced-list")
    if failure.begins_line and failure.character == ":":
        hint = "write a parameter name before the colon"
        return Problem("this key is empty", failure.where, hint, id="yaml-key-not-a-name")
    if failure.begins_line:
        hint = "align this line with the keys of its section"
        what = "the indentation of this line matches no line above it"
        return Problem(what, failure.where, hint, id="yaml-indentation", edits=_to_nearest_level(failure))
    if failure.character == ",":
        hint = "remove the comma, or put everything into one pair of `{ }`"
        what = "a comma after a value is allowed only inside `{ }` and `[ ]`"
        edits: tuple[Edit, ...] = ()
        if re.match(r"\s*(#.*)?$", failure.where.text[failure.where.column :]):
            edits = (Edit(failure.where._replace(width=1), "replace"),)
        return Problem(what, failure.where, hint, id="yaml-comma-outside-brackets", edits=edits)
    hint = "remove the text after the closing quote, or quote the whole value"
    if re.search(r"\w'$", failure.before) and failure.character.isalnum():
        hint = "to write a quote inside single quotes, double it: 'it''s mine'"
    return Problem("unexpected text after the value", failure.where, hint, id="yaml-text-after-value")


def _to_nearest_level(failure: ParseFailure) -> tuple[Edit, ...]:
    """Return the edit that aligns a line with the nearest of the levels around it, if one is nearer than the others."""
    written = _indentation(failure.where.text)
    lines = [failure.at(number, 0).text for number in range(failure.where.line - 1)]
    found = {_indentation(line) for line in lines if _has_content(line)}
    levels = sorted(found, key=lambda level: abs(level - written))
    if len(levels) < 2 or abs(levels[0] - written) == abs(levels[1] - written):
        return ()
    return (_indented(failure.where, " " * levels[0]),)


def _no_value(failure: ParseFailure) -> Problem:
    if not failure.character:
        also = (failure.began,) if failure.began else ()
        hint = "close every open bracket"
        return Problem("the text ends inside `{ }` or `[ ]`", failure.where, hint, also, id="yaml-unclosed-bracket")
    if failure.character in "]}":
        opening = "[" if failure.character == "]" else "{"
        what = f"this `{failure.character}` has no matching `{opening}`"
        hint = f"remove this `{failure.character}`, or add the missing `{opening}`"
        return Problem(what, failure.where, hint, id="yaml-unopened-bracket")
    what = f"a value is missing before this `{failure.character}`"
    return Problem(what, failure.where, id="yaml-missing-value")


def _after_the_end(failure: ParseFailure) -> Problem:
    if failure.character and failure.character in "]}":
        return _no_value(failure)
    above = (failure.at(number, 0) for number in range(failure.where.line))
    first = next((place for place in above if _has_content(place.text)), None)
    if failure.begins_line and failure.character != "{" and (problem := line_problem(failure.where)):
        return problem
    # A first line of plain text is a complete document, so the parser complains only about the line after it.
    if first and not re.search(r":(\s|$)|^\s*[{\[\"']", first.text):
        return _no_key(line_content(first))
    if failure.begins_line and first and first.text.startswith(" ") and not first.text.lstrip().startswith("{"):
        also = (line_content(first),)
        what, hint = "this line is indented less than the first line", "begin all top-level keys in the same column"
        edits = (_indented(first, failure.before),)
        return Problem(what, failure.where, hint, also, id="yaml-indentation", edits=edits)
    hint = "put everything into one pair of `{ }`, or remove the braces"
    return Problem("unexpected text after the end of the configuration", failure.where, hint, id="yaml-text-after-end")


def _anchor(failure: ParseFailure) -> Problem:
    what = "this anchor name is already used"
    also = (failure.began,) if failure.began else ()
    return Problem(what, failure.where, "rename one of the two anchors", also, id="yaml-duplicate-anchor")


_BY_PARSERS_WORDS: dict[str, Callable[[ParseFailure], Problem]] = {
    "second occurrence": _anchor,
    "cannot start any token": _stray_character,
    "tab character": _tab,
    "mapping values are not allowed": _colon,
    "could not find expected ':'": lambda failure: _no_key(failure.began or failure.where),
    "expected ',' or '}'": bracket_problem("{", "}"),
    "expected ',' or ']'": bracket_problem("[", "]"),
    "unexpected end of stream": _quote,
    "expected alphabetic or numeric": _alias,
    "unknown escape character": _escape,
    # JSON writes characters above U+FFFF as two escapes.
    "Unicode character escape": _constant(
        "this escape is not a valid code point; YAML has no surrogate pairs",
        "write the character itself",
        id="yaml-unknown-escape",
    ),
    "expected key": _not_a_key,
    "expected '-' indicator": _constant(
        "a `key: value` line cannot follow a list of `- ` items at the same indentation",
        "write the list below a key, as its value",
        id="yaml-misplaced-list",
    ),
    "sequence entries are not allowed": _constant(
        "a list of `- ` items must begin on a new line",
        "write `[a, b]`, or begin the list on the next line",
        id="yaml-misplaced-list",
    ),
    "expected node content": _no_value,
    "expected <document start>": _after_the_end,
    "incompatible YAML document": _DIRECTIVE,
    "directive": _DIRECTIVE,
}
