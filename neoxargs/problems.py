"""What is wrong, where, and what to write instead: the one place where problems are worded and drawn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Literal, NamedTuple


class Place(NamedTuple):
    """A stretch of one line in a file (or in a `--set`); line and column count from 1."""

    file: str
    line: int
    column: int
    text: str = ""
    """The whole line, for showing."""
    width: int = 1
    """How many characters the caret underlines."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True)
class Problem:
    """One sentence for the user, where it applies, and what to write instead."""

    what: str
    where: Place | None = None
    hint: str = ""
    also: tuple[Place, ...] = field(default=())
    """Other places that take part (the first of two duplicate keys, the other side of a conflict)."""
    severity: Literal["error", "warning"] = "error"


class Problems(Exception):
    """Raised with every problem found so far; the command line draws them and exits with 1."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = list(problems)
        super().__init__(render(self.problems))


def render(problems: Sequence[Problem]) -> str:
    """All problems as text, in the order of the files and lines they point at."""
    ordered = sorted(problems, key=_order)
    return "\n\n".join(_draw(problem) for problem in ordered)


def _order(problem: Problem) -> tuple[bool, str, int, int]:
    where = problem.where
    return (where is None, where.file, where.line, where.column) if where else (True, "", 0, 0)


def _draw(problem: Problem) -> str:
    head = f"{problem.where}: " if problem.where else ""
    lines = [f"{head}{problem.severity}: {problem.what}"]
    if problem.where:
        lines += _excerpt(problem.where)
    for place in problem.also:
        lines.append(f"  also at {place}")
        lines += _excerpt(place)
    if problem.hint:
        lines.append(f"  = {problem.hint}")
    return "\n".join(lines)


def _excerpt(place: Place, limit: int = 120) -> list[str]:
    """The line with a caret below the stretch; a long line is cut around it."""
    if not place.text.strip():
        return []
    cut = max(0, place.column - 1 - limit // 2) if len(place.text) > limit else 0
    text = place.text[cut : cut + limit].replace("\t", " ")
    start = place.column - 1 - cut
    caret = "^" * max(1, min(place.width, len(text) - start))
    gutter = " " * len(str(place.line))
    return [f"  {place.line} | {text}", f"  {gutter} | {' ' * start}{caret}"]


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """`did you mean a or b?`, or nothing when no choice is near."""
    near = get_close_matches(word, list(choices), n=2, cutoff=0.75)
    return f"did you mean {' or '.join(near)}?" if near else ""
