"""A `{` or `[` that does not end where the parser expects it: a comma, a quote or a bracket is missing, and where."""

from __future__ import annotations

import re
from collections.abc import Callable

from neoxargs.problems import Place, Problem
from neoxargs.resolve.yaml.line_patterns import LEFT_OUT, looked_at
from neoxargs.resolve.yaml.parse_failure import Trouble


def unclosed(opening: str, closing: str) -> Callable[[Trouble], Problem]:
    """How to word it for one kind of bracket."""

    def say(trouble: Trouble) -> Problem:
        if not trouble.character:
            return _never_closed(trouble, opening, closing)
        return _known(trouble) or _missing(trouble, opening, closing)

    return say


def _known(trouble: Trouble) -> Problem | None:
    """What is no matter of brackets."""
    if trouble.character == "=":
        return Problem("an `=` stands where YAML has `: `", trouble.where, "write `key: value`")
    if trouble.character == "{" and trouble.before.endswith("$"):
        return Problem("YAML puts no variables in", trouble.where, "write the value itself, or text in quotes")
    if trouble.character not in "]}" and trouble.before.count('"') % 2:
        line = trouble.last_above(_half_quoted, skip=1)
        return line and Problem("this quote is not closed on its line", _last_quote(line), 'write the second `"`')
    line = trouble.above() if trouble.character == ":" else None
    return looked_at(line) if line else None


def _missing(trouble: Trouble, opening: str, closing: str) -> Problem:
    also = (trouble.began,) if trouble.began else ()
    if trouble.character in "]}":
        what = f"this `{trouble.character}` does not close the `{opening}`"
        return Problem(what, trouble.where, f"write `{closing}` before it, or take it out", also)
    is_key = trouble.character == ":" and opening == "{" and re.fullmatch(_A_KEY, trouble.before)
    line = _content_above(trouble) if trouble.begins_line or is_key else None
    if line is None:
        return Problem(f"a `,` or the closing `{closing}` is missing before this", trouble.where, also=also)
    return _behind(line, closing, also)


_COMMENT = re.compile(r"(^|\s+)#.*")
#: A key that begins its line.
_A_KEY = r"\s*(\"[^\"]*\"|'[^']*'|[\w-]+)\s*"


def _behind(word: Place, closing: str, also: tuple[Place, ...]) -> Problem:
    """Something is missing behind the last word of a line."""
    last, hint = word.column + word.width - 1, ""
    character = word.text[last - 1]
    if word.text[word.column - 1 : last] == "...":
        return Problem("`...` stands for what was left out here", word, LEFT_OUT, also)
    if character == ";":
        return Problem("a `;` stands where YAML has a `,`", word._replace(column=last, width=1), "write a `,`", also)
    if character in "]}":
        word, hint = word._replace(column=last, width=1), f"or this `{character}` closes too early"
    return Problem(f"a `,` or the closing `{closing}` is missing behind this", word, hint, also)


def _content_above(trouble: Trouble) -> Place | None:
    """The last word above the line, behind which something is missing; comments are no content."""
    for number in range(trouble.where.line - 2, -1, -1):
        line = trouble.at(number, 0)
        if content := _COMMENT.sub("", line.text).rstrip():
            width = len(content.split()[-1])
            last = line._replace(column=len(content) - width + 1, width=width)
            return None if content.endswith((",", "{", "[")) else last
    return None


def _half_quoted(line: str) -> bool:
    return _COMMENT.sub("", line).count('"') % 2 == 1


def _last_quote(line: Place) -> Place:
    return line._replace(column=_COMMENT.sub("", line.text).rindex('"') + 1, width=1)


def _never_closed(trouble: Trouble, opening: str, closing: str) -> Problem:
    """The file ends inside a bracket; which one lacks its partner is told by a line that closes one too far left."""
    inner: list[Place] = []
    for number in range(trouble.began.line - 1 if trouble.began else 0, trouble.where.line):
        line = trouble.at(number, 0)
        for found in re.finditer(r"\"[^\"]*\"|'[^']*'|#.*|[\[\]{}]", line.text):
            if found[0] in "[{":
                inner.append(line._replace(column=found.start() + 1, width=1))
            elif found[0] in "]}" and inner:
                first = inner.pop()
                if not line.text[: found.start()].strip() and found.start() < _indentation(first):
                    partner = {"{": "}", "[": "]"}[first.text[first.column - 1]]
                    also = (line._replace(column=found.start() + 1, width=1),)
                    what = f"this `{first.text[first.column - 1]}` is never closed, unless a line is indented wrongly"
                    return Problem(what, first, f"close it with `{partner}`", also)
    return Problem(f"this `{opening}` is never closed", trouble.began, f"close it with `{closing}`")


def _indentation(line: Place) -> int:
    return len(line.text) - len(line.text.lstrip())
