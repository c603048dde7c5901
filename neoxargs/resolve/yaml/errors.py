"""Where a file is not YAML: the parser's words turned into a sentence about the file.

libyaml says where it gave up and what it was doing; what a person did there is guessed from the line.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from neoxargs.problems import Place, Problem
from neoxargs.resolve.yaml.brackets import unclosed
from neoxargs.resolve.yaml.line_patterns import conflict, looked_at, whole
from neoxargs.resolve.yaml.parse_failure import At, Trouble


def worded(error: Any, at: At) -> Problem:
    """A YAMLError as a problem of the file."""
    words = str(getattr(error, "problem", None) or error)
    trouble = Trouble(words, _spot(error, "problem_mark", at) or at(0, 0), _spot(error, "context_mark", at), at)
    if (mark := trouble.last_above(conflict)) and (known := looked_at(mark)):
        return known
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
    if trouble.begins_line and (known := looked_at(trouble.where)):
        return known
    what = f"a value cannot begin with `{trouble.character}`"
    return Problem(what, trouble.where, "put the value in quotes")


def _tab(trouble: Trouble) -> Problem:
    return Problem("a tab indents this line; YAML is indented by spaces", trouble.where, "replace the tab by spaces")


def _colon(trouble: Trouble) -> Problem:
    if ":" in trouble.before:
        hint = "if it belongs to the value, put the value in quotes"
        return Problem("a second `: ` on one line", trouble.where, hint)
    if line := trouble.above():
        return _no_key(line)
    if trouble.before.startswith(" "):
        hint = "begin the line in the column of the keys around it"
        return Problem("this key is indented unlike the line above it", _key_of(trouble.where), hint)
    hint = "look at the lines above it: each must be `key: value`"
    return Problem("YAML expects no `: ` here", trouble.where, hint)


def _key_of(where: Place) -> Place:
    """The key before the colon that a place is at."""
    key = where.text[: where.column - 1].strip()
    return where._replace(column=where.text.index(key) + 1, width=max(1, len(key)))


def _no_colon(trouble: Trouble) -> Problem:
    return _no_key(trouble.began or trouble.where)


def _no_key(line: Place) -> Problem:
    hint = "write `key: value`, with a space after the colon"
    return looked_at(line) or Problem("this line has no `: ` between a key and a value", line, hint)


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
    if trouble.character == "-" and trouble.begins_line:
        what = "a list cannot begin among lines of `key: value`"
        return Problem(what, trouble.where, "take the `-` out, or write the list below a key of its own")
    if trouble.begins_line:
        hint = "begin the line in the column of the keys it belongs to"
        return Problem("this line is indented like no line above it", trouble.where, hint)
    if trouble.character == ",":
        hint = "take the comma out, or put everything into one pair of `{ }`"
        return Problem("a comma ends a value only inside `{ }` and `[ ]`", trouble.where, hint)
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
        also = (trouble.began,) if trouble.began else ()
        return Problem("this ends inside `{ }` or `[ ]`", trouble.where, "close every bracket that is opened", also)
    if trouble.character in "]}":
        return Problem(f"this `{trouble.character}` closes nothing", trouble.where, "take it out, or open it before")
    return Problem(f"a value is missing before this `{trouble.character}`", trouble.where)


def _after_the_end(trouble: Trouble) -> Problem:
    if trouble.character and trouble.character in "]}":
        return _no_value(trouble)
    first = next((place for number in range(trouble.where.line) if _is_content(place := trouble.at(number, 0))), None)
    if trouble.begins_line and trouble.character != "{" and (known := looked_at(trouble.where)):
        return known
    if first and not re.search(r":(\s|$)|^\s*[{\[\"']", first.text):
        return _no_key(whole(first))
    if trouble.begins_line and first and first.text.startswith(" ") and not first.text.lstrip().startswith("{"):
        also = (whole(first),)
        what = "this line begins to the left of the first one"
        return Problem(what, trouble.where, "begin all keys at the top in one column", also)
    return Problem("the configuration has ended before this", trouble.where, "keep everything in one `{ }`, or in none")


def _is_content(line: Place) -> bool:
    return bool(line.text.strip()) and not line.text.lstrip().startswith("#")


def _directive(trouble: Trouble) -> Problem:
    return Problem("a line that begins with `%` is an instruction to YAML", trouble.where, "take the line out")


def _anchor(trouble: Trouble) -> Problem:
    what = "this marks a value by a name that another has already"
    return Problem(what, trouble.where, "give each `&name` once", (trouble.began,) if trouble.began else ())


_SAYINGS: dict[str, Callable[[Trouble], Problem]] = {
    "second occurrence": _anchor,
    "cannot start any token": _stray_character,
    "tab character": _tab,
    "mapping values are not allowed": _colon,
    "could not find expected ':'": _no_colon,
    "expected ',' or '}'": unclosed("{", "}"),
    "expected ',' or ']'": unclosed("[", "]"),
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
