"""Comments that suppress warnings: `# deepy: ignore[id]` in the warning's line, `# deepy: ignore-file[id]` in its file.

Errors cannot be suppressed, because a launch would refuse the run all the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from neoxargs.base.files import Text
from neoxargs.base.problems import Edit, Place, Problem
from neoxargs.resolve.rules import CHECKS, DERIVATIONS
from neoxargs.resolve.yaml.compose import lines_of

_COMMENT = re.compile(r"(?:^|(?<=\s))#\s*deepy:\s*ignore(?P<file>-file)?\[(?P<ids>[^\]]*)\]")


class Suppression(NamedTuple):
    """One id in a comment, and the place of the comment."""

    id: str
    where: Place
    in_file: bool
    is_alone: bool
    """Whether the comment has no other id."""

    def covers(self, problem: Problem) -> bool:
        if problem.severity == "error" or problem.id != self.id:
            return False
        if self.in_file:
            return problem.where is None or problem.where.file == self.where.file
        return problem.where is not None and problem.where[:2] == self.where[:2]


def suppressions(texts: Iterable[Text]) -> Iterator[Suppression]:
    """Yield every id of every comment."""
    for name, text in texts:
        if "deepy:" not in text:
            continue
        for number, line in enumerate(lines_of(text), 1):
            for match in _COMMENT.finditer(line):
                where = Place(name, number, match.start() + 1, line, match.end() - match.start())
                ids = [each.strip() for each in match["ids"].split(",")]
                for each in ids:
                    yield Suppression(each, where, match["file"] is not None, len(ids) == 1)


def not_suppressed(problems: Iterable[Problem], texts: Iterable[Text]) -> list[Problem]:
    """Return the problems without the warnings that a comment suppresses."""
    comments = list(suppressions(texts))
    return [problem for problem in problems if not any(comment.covers(problem) for comment in comments)]


def unused(problems: Sequence[Problem], texts: Iterable[Text]) -> Iterator[Problem]:
    """Yield a warning for each comment that suppresses nothing.

    Only of rules, which look at every configuration: what else is found depends on the machine and the options.
    """
    comments = list(suppressions(texts))
    of_rules = {rule.id for rule in (*CHECKS, *DERIVATIONS)} if comments else ()
    for comment in comments:
        if comment.id in of_rules and not any(map(comment.covers, problems)):
            what = f"no warning {comment.id} is suppressed by this comment"
            hint = "remove it; errors cannot be suppressed" if comment.is_alone else f"remove {comment.id} from it"
            edits: tuple[Edit, ...] = ()
            if comment.is_alone:
                start = len(comment.where.text[: comment.where.column - 1].rstrip())
                width = comment.where.column - 1 + comment.where.width - start
                edits = (Edit(comment.where._replace(column=start + 1, width=width), "replace"),)
            yield Problem(what, comment.where, hint, severity="warning", id="unused-suppression", edits=edits)
