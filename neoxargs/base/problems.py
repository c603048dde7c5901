"""Problems: what is wrong, where, and what to write instead. Only this module renders them."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, TextIO

from neoxargs.base.record import Record, field, replace

#: `Place.file` of a `--set` argument; `Place.text` is then the argument.
SET = "--set"
#: Part of a problem -> how a terminal shows it (ECMA-48, select graphic rendition).
STYLES = {"error": "1;31", "warning": "1;33", "place": "1", "id": "2", "hint": "36"}
#: The end of a name whose value is a secret. Of names with `token`, only those of access: most are tokens of a text.
SECRET_NAME = (
    r"(?:(?:api|access|secret)[_-]?key|password|secret"
    r"|(?:hf|hub|huggingface|auth|access|api|bearer|github|gitlab|wandb|comet|slack|session)[_-]token)"
)
#: The value of a secret in a line of a file, in a sentence or among arguments, which is shown as asterisks.
SECRET_VALUE = re.compile(
    rf"""((?:{SECRET_NAME}["']?\s*[:=(]|(?-i:_KEY)=|(?<![\w-])token=|[{{,]\s*["']?token["']?\s*:"""
    rf"""|(?<![\w-])--[\w-]*{SECRET_NAME}(?:["']?\s*,|(?=\s+[^\s-])))\s*)"""
    r"""("[^"\n]*"?|'[^'\n]*'?|\[[^\]\n]*\]?|[^\s,}\])]+)""",
    re.IGNORECASE,
)
#: What is a secret by its form: tokens of Hugging Face, GitHub, GitLab, AWS, Slack, and of those that begin with sk-.
SECRET_TOKEN = re.compile(
    r"((?<![\w-]))((?:hf|gh[oprsu])_[A-Za-z0-9]{24,}|(?:github_pat_|glpat-)[\w-]{20,}|A[KS]IA[A-Z0-9]{16}"
    r"|xox[a-z]-[\w-]{10,}|sk-(?=[\w-]*\d)(?=[\w-]*[A-Z])[\w-]{20,})"
)
#: The password of a user in an address: https://USER:PASSWORD@host.
PASSWORD_IN_ADDRESS = re.compile(r"(://[^\s/@:]*:)([^\s/@]+)(?=@)")
#: Problems that are rendered at most. A file with more is usually not a configuration, and the first ones show that.
MAX_DRAWN = 100
#: Characters of a sentence or a hint that are printed.
MAX_LINE = 2_000
#: Lines with the same problem that are shown.
MAX_ALIKE = 3
_NUMBER = re.compile(r"\d+")


class Place(NamedTuple):
    """A range of characters in one line of a file or in a `--set` argument; line and column count from 1.

    Line 0 means the whole file (one that is missing, too large or empty).
    """

    file: str
    line: int
    column: int
    text: str = ""
    """The whole line, for the excerpt."""
    width: int = 1
    """Number of characters to underline."""

    @property
    def written(self) -> str:
        """The characters of the range."""
        return self.text[self.column - 1 :][: self.width]

    def __str__(self) -> str:
        if self.file == SET:
            return f"{SET} {without_secrets(self.text)}"
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


class Edit(Record):
    """One change of a file, which corrects a problem alone or together with the problem's other edits.

    Declared where the problem is found, and made by `resolve/yaml/edit.py`.
    """

    where: Place
    """The characters that are replaced; for other changes, the key of the entry."""
    do: Literal["replace", "set", "move", "remove"]
    """`set` gives the entry another value; `move` puts it into another section."""
    text: str = ""
    """The new characters or the new value, as YAML; the dotted name of an entry that is moved."""
    safe: bool = True
    """Whether nothing else can be meant; `--unsafe-fixes` also makes the other edits."""


class Problem(Record):
    """One error or warning: a sentence for the user, its place, and what to write instead."""

    what: str
    where: Place | None = None
    hint: str = ""
    also: tuple[Place, ...] = ()
    """Other places involved (the first of two duplicate keys, the other side of a conflict)."""
    severity: Literal["error", "warning"] = "error"
    id: str = field(kw_only=True)
    """Identifies the kind of problem, such as `unknown-key`; `deepy explain ID` describes it."""
    about: tuple[str, ...] = ()
    """The parameters involved, by their registry names."""
    edits: tuple[Edit, ...] = ()
    """What corrects the problem, if that is known."""

    def as_warning(self) -> Problem:
        """Return a copy that does not stop the run."""
        return replace(self, severity="warning")

    def to_json(self) -> dict[str, Any]:
        """Return the problem as every command's `--json` prints it."""
        return {
            "id": self.id,
            "about": list(self.about),
            "severity": self.severity,
            "what": without_secrets(self.what),
            "hint": without_secrets(self.hint),
            **_place_to_json(self.where),
            "also": [_place_to_json(place) for place in self.also],
        }


def _place_to_json(place: Place | None) -> dict[str, Any]:
    """Return file, line and column; all null if the problem has no place."""
    if place is None:
        return {"file": None, "line": None, "column": None}
    return {"file": place.file, "line": place.line, "column": place.column}


class Problems(Exception):
    """Raised with every problem found so far; the command line renders them and exits with 1."""

    def __init__(self, problems: Problem | Iterable[Problem]) -> None:
        self.problems = [problems] if isinstance(problems, Problem) else list(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        return render(self.problems)


def has_errors(problems: Iterable[Problem]) -> bool:
    """Return whether any of the problems is an error."""
    return any(problem.severity == "error" for problem in problems)


def report(problems: Sequence[Problem], end: str = "\n") -> None:
    """Print problems, if there are any, on stderr, in colour if it is a terminal."""
    if problems:
        print(render(problems, in_colour(sys.stderr)), end=end, file=sys.stderr, flush=True)


def in_colour(stream: TextIO) -> bool:
    """Return whether a stream is a terminal whose user has not switched colours off (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def render(problems: Sequence[Problem], colour: bool = False) -> str:
    """Return problems as text, sorted by file and line; at most MAX_DRAWN, errors before warnings."""
    ordered, left_out = in_order(problems), len(problems) - MAX_DRAWN
    if left_out <= 0:
        return "\n\n".join(_draw(problem, colour) for problem in ordered)
    errors_first = sorted(ordered, key=lambda problem: problem.severity == "warning")
    drawn = [_draw(problem, colour) for problem in errors_first[:MAX_DRAWN]]
    return "\n\n".join([*drawn, f"... and {left_out} more; --json prints all of them"])


def shortened(problems: Iterable[Problem], *, complete: bool) -> list[Problem]:
    """Return the problems, of those that differ only in line and numbers the first three; the third counts the others.

    complete: whether all lines have been read.
    """
    groups: dict[tuple[object, ...], list[Problem]] = {}
    for number, problem in enumerate(problems):
        kind = (problem.id, _NUMBER.sub("", problem.what)) if problem.where else (number,)
        groups.setdefault(kind, []).append(problem)
    return [problem for alike in groups.values() for problem in _first(alike, complete)]


def _first(alike: list[Problem], complete: bool) -> list[Problem]:
    more = len(alike) - MAX_ALIKE
    if more <= 0:
        return alike
    *first, last = alike[:MAX_ALIKE]
    count = f"{'' if complete else 'at least '}{more:,} more line{'' if more == 1 else 's'}"
    return [*first, replace(last, what=f"{last.what} (and {count})")]


def with_note(problem: Problem, note: str) -> Problem:
    """Return a problem with a note behind its hint."""
    return replace(problem, hint=f"{problem.hint} ({note})" if problem.hint else note)


def sentence(problem: Problem) -> str:
    """Return only what is wrong, for callers that print their own place and severity."""
    return "\n".join(map(_line, without_secrets(problem.what).split("\n")))


def _line(text: str) -> str:
    """Return a line for the terminal; the middle of a longer one, such as that with a value of megabytes, is cut."""
    half = MAX_LINE // 2
    return printable(text if len(text) <= MAX_LINE else f"{text[:half]} … {text[-half:]}")


@functools.lru_cache(maxsize=16)  # a file in one long line has hundreds of problems with that line
def without_secrets(text: str) -> str:
    """Return a text of the same length with asterisks in place of secrets."""
    for pattern in (SECRET_VALUE, SECRET_TOKEN, PASSWORD_IN_ADDRESS):
        text = pattern.sub(lambda found: found[1] + "*" * len(found[2]), text)
    return text


def in_order(problems: Iterable[Problem]) -> list[Problem]:
    """Return problems sorted by file, line and column; those without a place come last."""
    return sorted(problems, key=_order)


def _order(problem: Problem) -> tuple[bool, str, int, int]:
    where = problem.where
    return (where is None, where.file, where.line, where.column) if where else (True, "", 0, 0)


def _draw(problem: Problem, colour: bool) -> str:
    def paint(text: str, style: str) -> str:
        return f"\033[{STYLES[style]}m{text}\033[0m" if colour and text else text

    where, severity = problem.where, problem.severity
    head = paint(f"{SET if where.file == SET else printable(str(where))}: ", "place") if where else ""
    first, *more = sentence(problem).split("\n")
    lines = [f"{head}{paint(f'{severity}:', severity)} {first} {paint(f'[{problem.id}]', 'id')}", *more]
    for place in [where, *(each for each in problem.also if each != where)]:
        if place and place is not where:
            lines.append("  also" if place.file == SET else f"  also at {printable(str(place))}")
        if place and (excerpt := _excerpt(place)):
            lines += [excerpt[0], paint(excerpt[1], severity)]
    if problem.hint:
        lines.append(paint(f"  = {_line(without_secrets(problem.hint))}", "hint"))
    return "\n".join(lines)


def _excerpt(place: Place, limit: int = 110) -> list[str]:
    """Return the line, and carets below the range; a line longer than `limit` is cut around it."""
    if not place.text.strip():
        return []
    start = place.column - 1
    cut = max(0, start - limit // 2) if len(place.text) > limit else 0
    text = printable(without_secrets(place.text)[cut : cut + limit])
    before, after = "… " if cut else "", " …" if cut + limit < len(place.text) else ""
    underlined = text[start - cut :][: place.width]
    caret = "^" * max(1, _cells(underlined))
    label = f"{SET} " if place.file == SET else f"{place.line} | "
    blank = " " * len(label) if place.file == SET else f"{' ' * len(str(place.line))} | "
    return [f"  {label}{before}{text}{after}", f"  {blank}{' ' * (len(before) + _cells(text[: start - cut]))}{caret}"]


def _cells(text: str) -> int:
    """Width in terminal cells: Chinese, Japanese and Korean characters take two, combining marks none."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width  # rarely needed

    return sum(0 if combining(letter) else 2 if east_asian_width(letter) in "WF" else 1 for letter in text)


def printable(text: str) -> str:
    """Replace tabs by spaces and control characters by U+FFFD, so that the text is safe to print."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else "\N{REPLACEMENT CHARACTER}" for c in text)


def close_matches(word: str, choices: Iterable[str], most: int = 2, alike: float = 0.75) -> list[str]:
    """Return the choices most similar to the word, best first.

    alike: minimum similarity, 0 to 1. Further choices are returned only if they are nearly as similar as the first, or
    as few edits away from the word.
    """
    from difflib import SequenceMatcher, get_close_matches  # only needed for errors

    def edits(choice: str) -> int:
        if sorted(choice) == sorted(word):
            return 1  # two swapped letters
        changes = SequenceMatcher(None, choice, word).get_opcodes()
        return sum(max(end - start, stop - begin) for tag, start, end, begin, stop in changes if tag != "equal")

    found = get_close_matches(word, list(choices), n=most, cutoff=alike)
    likeness = {choice: SequenceMatcher(None, choice, word).ratio() for choice in found}
    return [
        choice for choice in found if likeness[choice] > likeness[found[0]] - 0.08 or edits(choice) <= edits(found[0])
    ]


def is_one_edit(word: str, other: str) -> bool:
    """Return whether two words differ by one letter that is added, left out or another one, or by two swapped letters.

    Upper and lower case are the same. True for equal words.
    """
    short, long = sorted((word.lower(), other.lower()), key=len)
    start = next((i for i, pair in enumerate(zip(short, long, strict=False)) if pair[0] != pair[1]), len(short))
    a, b = short[start:], long[start:]
    if len(a) < len(b):
        return a == b[1:]
    return a[1:] == b[1:] or (a[:2] == b[1::-1] and a[2:] == b[2:])


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return `did you mean a or b?`, or "" if no choice is similar."""
    found = close_matches(word, choices)
    return f"did you mean {' or '.join(found)}?" if found else ""


def similar_folders(folder: str) -> str:
    """Return `did you mean a or b?` with the paths of similar folders beside a missing folder, or ""."""
    beside, wanted = os.path.split(os.path.normpath(folder))
    try:
        names = [entry.name for entry in os.scandir(beside or ".") if entry.is_dir()]
    except OSError:
        return ""
    found = [os.path.join(beside, name) for name in close_matches(wanted, names)]
    return f"did you mean {' or '.join(found)}?" if found else ""


def listed(words: Iterable[str], last: str = "or", most: int = 12) -> str:
    """Join words as `a, b or c`; of more than `most` words, the rest is given as a number."""
    all_words = list(words)
    if len(all_words) > most:
        return f"{', '.join(all_words[:most])} and {len(all_words) - most} more"
    return f" {last} ".join([w for w in (", ".join(all_words[:-1]), *all_words[-1:]) if w])
