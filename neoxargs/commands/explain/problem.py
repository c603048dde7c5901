"""`deepy explain ID`: what a problem protects from, an example, and what `deepy check` reports for the example."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from neoxargs.base.problems import Problem, did_you_mean, render
from neoxargs.base.text import wrap
from neoxargs.commands.explain.catalogue import Entry, Example, catalogue
from neoxargs.commands.explain.example import GPUS, NAME, check_example
from neoxargs.commands.explain.render import WIDTH


def is_problem(word: str) -> bool:
    """Whether a word is the id of a problem, with or without the brackets in which `check` prints it."""
    return _id(word) in catalogue()


def nearest_problem(word: str) -> str:
    """Return `did you mean rotary-dims-even?`, or '' if no id is similar."""
    return did_you_mean(_id(word), catalogue()) if "-" in word else ""


def to_json(word: str) -> dict[str, Any]:
    """Return the answer for `--json`; `problem` is that of the example, as in `check --json`."""
    entry = catalogue()[_id(word)]
    found = problems_of(entry.example, _id(word))
    return {
        "name": _id(word),
        "protects from": entry.protects_from,
        "about": list(about_of(entry, found)),
        "example": entry.example.config if entry.example else None,
        "problem": found[0].to_json() if found else None,
    }


def to_text(word: str) -> str:
    """Return the answer as text."""
    return "\n".join(_lines(_id(word), catalogue()[_id(word)]))


def _lines(problem_id: str, entry: Entry) -> Iterator[str]:
    yield problem_id
    yield from (f"  {line}" for line in wrap(entry.protects_from, WIDTH - 2, indent=""))
    found = problems_of(entry.example, problem_id)
    if about := ", ".join(about_of(entry, found)):
        yield ""
        yield from wrap(f"  about: {about}", WIDTH, indent="         ")
    if entry.example:
        yield f"\nExample ({NAME}, together with a file that describes a model):\n"
        yield textwrap.indent(entry.example.config.rstrip("\n"), "    ")
        yield from (f"    --set {override}" for override in entry.example.overrides)
        gpus = "" if entry.example.files else f" --gpus {GPUS}"
        yield f"\n`deepy check{gpus}` reports:\n"
        yield textwrap.indent(render(found), "    ")


def about_of(entry: Entry, found: Sequence[Problem]) -> tuple[str, ...]:
    """Return the parameters that a rule reads or, if no rule reports the problem, those of the example."""
    return entry.reads or (found[0].about if found else ())


def problems_of(example: Example | None, problem_id: str) -> list[Problem]:
    """Return the problems of this id that `deepy check` reports for an example."""
    return [problem for problem in check_example(example) if problem.id == problem_id] if example else []


def _id(word: str) -> str:
    return word.strip("[]").replace("_", "-")
