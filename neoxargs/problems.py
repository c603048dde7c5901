"""What is wrong, where, and what to write instead: the one place where problems are worded and drawn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

#: The file name of a `--set` argument's place; its text is the argument itself.
SET = "--set"
#: Where there are more problems, a file is not what it was taken for, and the first of them tell it.
MAX_DRAWN = 100


class Place(NamedTuple):
    """A stretch of one line in a file (or in a `--set`); line and column count from 1.

    Line 0 is a file as a whole (one that is missing, too large, empty).
    """

    file: str
    line: int
    column: int
    text: str = ""
    """The whole line, for showing."""
    width: int = 1
    """How many characters the caret underlines."""

    def __str__(self) -> str:
        if self.file == SET:
            return f"{SET} {self.text}"
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


@dataclass(frozen=True)
class Problem:
    """One sentence for the user, where it applies, and what to write instead."""

    what: str
    where: Place | None = None
    hint: str = ""
    also: tuple[Place, ...] = field(default=())
    """Other places that take part (the first of two duplicate keys, the other side of a conflict)."""
    severity: Literal["error", "warning"] = "error"
    id: str = field(kw_only=True)
    """Which kind of problem it is, whatever its sentence says; `deepy explain unknown-key` tells more."""
    about: tuple[str, ...] = field(default=(), kw_only=True)
    """The parameters that take part, by their registry names."""

    def as_warning(self) -> Problem:
        """The same, which stops nothing."""
        return replace(self, severity="warning")

    def to_json(self) -> dict[str, Any]:
        """The form in which every verb's `--json` gives problems."""
        return {
            "id": self.id,
            "about": list(self.about),
            "severity": self.severity,
            "what": self.what,
            "hint": self.hint,
            **_place_to_json(self.where),
            "also": [_place_to_json(place) for place in self.also],
        }


def _place_to_json(place: Place | None) -> dict[str, Any]:
    """Where it is; null where that is no place in a file."""
    if place is None:
        return {"file": None, "line": None, "column": None}
    return {"file": place.file, "line": place.line, "column": place.column}


class Problems(Exception):
    """Raised with every problem found so far; the command line draws them and exits with 1."""

    def __init__(self, problems: Problem | Iterable[Problem]) -> None:
        self.problems = [problems] if isinstance(problems, Problem) else list(problems)
        super().__init__(render(self.problems))


def render(problems: Sequence[Problem]) -> str:
    """Problems as text, in the order of the files and lines they point at; of very many only some, rather errors."""
    shown, more = sorted(problems, key=_order), len(problems) - MAX_DRAWN
    if more > 0:
        shown = sorted(shown, key=lambda problem: problem.severity == "warning")[:MAX_DRAWN]
    return "\n\n".join([*map(_draw, shown), *([f"... and {more} more; --json prints all of them"] if more > 0 else [])])


def sentence(problem: Problem) -> str:
    """What is wrong, alone: for a line that has a head of its own."""
    return "\n".join(map(printable, problem.what.split("\n")))


def _order(problem: Problem) -> tuple[bool, str, int, int]:
    where = problem.where
    return (where is None, where.file, where.line, where.column) if where else (True, "", 0, 0)


def _draw(problem: Problem) -> str:
    where = problem.where
    head = f"{SET if where.file == SET else printable(str(where))}: " if where else ""
    first, *more = sentence(problem).split("\n")
    lines = [f"{head}{problem.severity}: {first} [{problem.id}]", *more]
    if where:
        lines += _excerpt(where)
    for place in problem.also:
        if place != where:
            lines.append("  also" if place.file == SET else f"  also at {printable(str(place))}")
            lines += _excerpt(place)
    if problem.hint:
        lines.append(f"  = {printable(problem.hint)}")
    return "\n".join(lines)


def _excerpt(place: Place, limit: int = 110) -> list[str]:
    """The line with a caret below the stretch; a long line is cut around it."""
    if not place.text.strip():
        return []
    start = place.column - 1
    cut = max(0, start - limit // 2) if len(place.text) > limit else 0
    text = printable(place.text[cut : cut + limit])
    before, after = "… " if cut else "", " …" if cut + limit < len(place.text) else ""
    there = text[start - cut :][: place.width]
    caret = "^" * max(1, _cells(there))
    label = f"{SET} " if place.file == SET else f"{place.line} | "
    blank = " " * len(label) if place.file == SET else f"{' ' * len(str(place.line))} | "
    return [f"  {label}{before}{text}{after}", f"  {blank}{' ' * (len(before) + _cells(text[: start - cut]))}{caret}"]


def _cells(text: str) -> int:
    """How wide a terminal draws it: Chinese, Japanese and Korean letters take two cells, combining marks none."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width  # hardly any file needs it

    return sum(0 if combining(letter) else 2 if east_asian_width(letter) in "WF" else 1 for letter in text)


def printable(text: str) -> str:
    """The text as it may be sent to a terminal: one cell for every tab and control character."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else "\N{REPLACEMENT CHARACTER}" for c in text)


def close_matches(word: str, choices: Iterable[str], most: int = 2, alike: float = 0.75) -> list[str]:
    """The choices that look like the word, best first; a second one only if it is about as near."""
    from difflib import SequenceMatcher, get_close_matches  # only a mistake needs it

    found = get_close_matches(word, list(choices), n=most, cutoff=alike)
    likeness = [SequenceMatcher(None, choice, word).ratio() for choice in found]
    return [choice for choice, ratio in zip(found, likeness, strict=True) if ratio > likeness[0] - 0.08]


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """`did you mean a or b?`, or nothing when no choice is near."""
    found = close_matches(word, choices)
    return f"did you mean {' or '.join(found)}?" if found else ""


def listed(words: Iterable[str], last: str = "or", most: int = 12) -> str:
    """`a, b or c`; a long list ends in the number of those left out."""
    all_words = list(words)
    if len(all_words) > most:
        return f"{', '.join(all_words[:most])} and {len(all_words) - most} more"
    return f" {last} ".join([w for w in (", ".join(all_words[:-1]), *all_words[-1:]) if w])
