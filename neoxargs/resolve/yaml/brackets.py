"""Errors inside `{ }` and `[ ]`: a missing comma, quote or bracket, and where it belongs."""

from __future__ import annotations

import re
from collections.abc import Callable

from neoxargs.base.problems import Edit, Place, Problem
from neoxargs.resolve.yaml.line_patterns import ELLIPSIS_HINT, line_problem
from neoxargs.resolve.yaml.parse_failure import ParseFailure


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
