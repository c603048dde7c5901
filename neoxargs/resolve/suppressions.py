"""Comments that suppress warnings: `# deepy: ignore[id]` in the warning's line, `# deepy: ignore-file[id]` in its file.

Errors cannot be suppressed, because a launch would refuse the run all the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from neoxargs.base.files import Text
from neoxargs.base.problems import Edit, Place, Problem, close_matches, is_one_edit, listed
from neoxargs.resolve.rules import CHECKS, DERIVATIONS
from neoxargs.resolve.yaml.compose import lines_of

UNUSED = "unused-suppression"
_COMMENT = re.compile(r"(?:^|(?<=\s))#\s*deepy:\s*ignore(?P<file>-file)?\[(?P<ids>[^\]]*)\]")
#: The same in any form.
_MEANT = re.compile(r"(?:^|(?<=\s))#\s*deepy:\s*ignore(?P<file>-file)?(?:\[\s*\])?")

#: A text in quotes, and a quote that begins one. An apostrophe within a word begins none.
_QUOTED = re.compile(r"""(?:^|(?<=[\s\[{,:]))(?:"(?:[^"\\]|\\.)*"|'(?:[^']|'')*')""")
_OPEN_QUOTE = re.compile(r"""(?:^|(?<=[\s\[{,:]))["']""")


class Suppression(NamedTuple):
    """One id in a comment, and the place of the comment."""

    id: str
    where: Place
    in_line: Place
    """The place of the id in the comment."""
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
    for match, where in _comments(_COMMENT, texts):
        ids = list(re.finditer(r"[^\s,][^,]*[^\s,]|[^\s,]", match["ids"]))
        for each in ids:
            start = match.start("ids") + each.start()
            in_line = where._replace(column=start + 1, width=len(each[0]))
            yield Suppression(each[0], where, in_line, match["file"] is not None, len(ids) == 1)


def _comments(pattern: re.Pattern[str], texts: Iterable[Text]) -> Iterator[tuple[re.Match[str], Place]]:
    for name, text in texts:
        if "deepy:" not in text:
            continue
        for number, line in enumerate(lines_of(text), 1):
            for match in pattern.finditer(line):
                if not _is_quoted(line[: match.start()]):
                    yield match, Place(name, number, match.start() + 1, line, match.end() - match.start())


def _is_quoted(before: str) -> bool:
    """Return whether what follows in the line is in quotes, as far as one line tells."""
    return _OPEN_QUOTE.search(_QUOTED.sub("", before)) is not None


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
            yield Problem(what, comment.where, hint, severity="warning", id=UNUSED, edits=edits)


def used_nowhere(found: Sequence[Sequence[Problem]], files: Sequence[Collection[str]]) -> list[list[Problem]]:
    """Return the problems of several runs; a comment is unused only if it is so in each run that has its file.

    files: the names of the files of each run.
    """

    def is_used(problem: Problem) -> bool:
        return problem.id == UNUSED and any(
            problem.where and problem.where.file in names and problem not in problems
            for problems, names in zip(found, files, strict=True)
        )

    return [[problem for problem in problems if not is_used(problem)] for problems in found]


def without_id(problems: Sequence[Problem], texts: Iterable[Text]) -> Iterator[Problem]:
    """Yield a warning for each comment without an id in brackets. problems: those of the run, of which one is meant."""
    for match, where in _comments(_MEANT, texts):
        named = _COMMENT.match(where.text, match.start())
        if named and named["ids"].strip(" ,"):
            continue
        in_line = [each.id for each in problems if Suppression(each.id, where, where, False, True).covers(each)]
        ids = [] if match["file"] else [*dict.fromkeys(in_line)]
        written = f"# deepy: ignore{match['file'] or ''}[{', '.join(ids) or 'ID'}]"
        hint = f"write `{written}`" if ids else f"write `{written}` with the id of a warning, or remove it"
        edits = (Edit(where, "replace", written, safe=False),) if len(ids) == 1 else ()
        what = "this comment suppresses nothing, because it names no id in brackets"
        yield Problem(what, where, hint, severity="warning", id="suppression-without-id", edits=edits)


def unknown(texts: Iterable[Text], known: Callable[[], Collection[str]]) -> Iterator[Problem]:
    """Yield a warning for each id in a comment that no problem has. known: returns the ids of all problems."""
    for comment in suppressions(texts):
        if comment.id in known():
            continue
        meant = close_matches(comment.id, known())
        edits: tuple[Edit, ...] = ()
        if len(meant) == 1:
            edits = (Edit(comment.in_line, "replace", meant[0], safe=is_one_edit(comment.id, meant[0])),)
        what, hint = f"no problem has the id {comment.id}", f"did you mean {listed(meant)}?" if meant else ""
        yield Problem(what, comment.in_line, hint, severity="warning", id="unknown-suppression", edits=edits)
