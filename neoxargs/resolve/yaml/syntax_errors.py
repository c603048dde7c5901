"""Turn messages of the YAML parser into problems that name the likely mistake.

libyaml reports where it stopped and what it was parsing; the mistake is inferred from the lines around that place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from neoxargs.base.problems import Edit, Place, Problem
from neoxargs.resolve.yaml.line_patterns import ELLIPSIS_HINT, is_conflict_mark, line_content, line_problem


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


# -- inside `{ }` and `[ ]`: a missing comma, quote or bracket, and where it belongs -----------------------------------


def bracket_problem(opening: str, closing: str) -> Callable[[ParseFailure], Problem]:
    """Return a function that turns a parse failure inside this kind of bracket into a problem."""

    def problem_of(failure: ParseFailure) -> Problem:
        if not failure.character:
            return _never_closed(failure, opening, closing)
        return _other_mistake(failure) or _missing(failure, opening, closing)

    return problem_of


def _other_mistake(failure: ParseFailure) -> Problem | None:
    """Return the problem of a mistake that is not about brackets or commas, else None."""
    if failure.character == "=":
        what = "expected `: ` after the key, got `=`"
        return Problem(what, failure.where, "write `key: value`", id="yaml-equals-sign")
    if failure.character == "{" and failure.before.endswith("$"):
        hint = "write the value itself, or put the text in quotes"
        return Problem("YAML does not expand variables", failure.where, hint, id="yaml-variable")
    # An odd number of quotes: the parser took what follows an earlier quote as its text, and stops at this one.
    if failure.character not in "]}" and failure.before.count('"') % 2:
        line = failure.last_above(lambda above: _COMMENT.sub("", above).count('"') % 2 == 1, skip=1)
        if line is None:
            return None
        quote = line._replace(column=_COMMENT.sub("", line.text).rindex('"') + 1, width=1)
        return Problem("this quote is not closed on its line", quote, 'add the closing `"`', id="yaml-unclosed-quote")
    line = failure.above() if failure.character == ":" else None
    return line_problem(line) if line else None


def _missing(failure: ParseFailure, opening: str, closing: str) -> Problem:
    also = (failure.began,) if failure.began else ()
    if failure.character in "]}":
        what = f"`{failure.character}` cannot close `{opening}`"
        hint = f"add `{closing}` before this `{failure.character}`, or remove this `{failure.character}`"
        return Problem(what, failure.where, hint, also, id="yaml-wrong-bracket")
    if opening == "{" and not failure.begins_line and re.search(r"[{,]\s*(\"[^\"]*\"|'[^']*')\s+$", failure.before):
        what = "a `:` is missing before this value"
        return Problem(what, failure.where, "write `key: value`", also, id="yaml-missing-colon")
    is_key = failure.character == ":" and opening == "{" and re.fullmatch(_A_KEY, failure.before)
    line = _content_above(failure) if failure.begins_line or is_key else None
    if line is None:
        what = f"a `,` or the closing `{closing}` is missing before this text"
        return Problem(what, failure.where, also=also, id="yaml-missing-comma")
    return _missing_after(line, closing, also, bool(re.match(rf"{_A_KEY}:", failure.where.text)))


_COMMENT = re.compile(r"(^|\s+)#.*")
#: A line up to the colon of its key.
_A_KEY = r"\s*(\"[^\"]*\"|'[^']*'|[\w-]+)\s*"


def _missing_after(word: Place, closing: str, also: tuple[Place, ...], before_key: bool) -> Problem:
    """Return the problem of a character missing after the last word of a line. before_key: a key follows."""
    last, hint = word.column + word.width - 1, ""
    character = word.text[last - 1]
    if word.text[word.column - 1 : last] == "...":
        return Problem("`...` is a placeholder, not a value", word, ELLIPSIS_HINT, also, id="yaml-ellipsis")
    if character == ";":
        where = word._replace(column=last, width=1)
        edit = Edit(where, "replace", ",")
        return Problem("expected `,`, got `;`", where, "write `,`", also, id="yaml-missing-comma", edits=(edit,))
    if character in "]}":
        word = word._replace(column=last, width=1)
        hint = f"add a `,` or `{closing}` after this `{character}`, or move this `{character}` to where it belongs"
    what = f"a `,` or the closing `{closing}` is missing after this value"
    edits = (Edit(word._replace(column=last + 1, width=0), "replace", ","),) if before_key else ()
    return Problem(what, word, hint, also, id="yaml-missing-comma", edits=edits)


def _content_above(failure: ParseFailure) -> Place | None:
    """Return the last word above the failure, comments excluded; None if it ends in `,`, `{` or `[`."""
    # Upwards from the line above; a place counts from 1, lines from 0.
    for number in range(failure.where.line - 2, -1, -1):
        line = failure.at(number, 0)
        if content := _COMMENT.sub("", line.text).rstrip():
            width = len(content.split()[-1])
            last = line._replace(column=len(content) - width + 1, width=width)
            return None if content.endswith((",", "{", "[")) else last
    return None


def _never_closed(failure: ParseFailure, opening: str, closing: str) -> Problem:
    """Return the problem of a file that ends inside a bracket.

    The unclosed bracket is found by indentation: a line that closes it is further left than the line that opens it.
    """
    inner: list[Place] = []
    for number in range(failure.began.line - 1 if failure.began else 0, failure.where.line):
        line = failure.at(number, 0)
        for match in re.finditer(r"\"[^\"]*\"|'[^']*'|#.*|[\[\]{}]", line.text):
            if match[0] in "[{":
                inner.append(line._replace(column=match.start() + 1, width=1))
            elif match[0] in "]}" and inner:
                first = inner.pop()
                indentation = len(first.text) - len(first.text.lstrip())
                if not line.text[: match.start()].strip() and match.start() < indentation:
                    partner = {"{": "}", "[": "]"}[first.written]
                    also = (line._replace(column=match.start() + 1, width=1),)
                    what = f"this `{first.written}` is never closed, or a line below it is indented wrongly"
                    return Problem(what, first, f"add the closing `{partner}`", also, id="yaml-unclosed-bracket")
    what = f"this `{opening}` is never closed"
    return Problem(what, failure.began, f"add the closing `{closing}`", id="yaml-unclosed-bracket")


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
