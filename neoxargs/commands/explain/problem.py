"""`deepy explain ID`: what a problem protects from, an example, and what `deepy check` reports for the example."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
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
    entry = catalogue()[_id(word)]
    lines = [_id(word), *(f"  {line}" for line in wrap(entry.protects_from, WIDTH - 2, indent=""))]
    found = problems_of(entry.example, _id(word))
    if about := ", ".join(about_of(entry, found)):
        lines += ["", *wrap(f"  about: {about}", WIDTH, indent="         ")]
    if entry.example:
        lines.append(f"\nExample ({NAME}, together with a file that describes a model):\n")
        lines.append(textwrap.indent(entry.example.config.rstrip("\n"), "    "))
        lines += [f"    --set {override}" for override in entry.example.overrides]
        gpus = "" if entry.example.files else f" --gpus {GPUS}"
        lines += [f"\n`deepy check{gpus}` reports:\n", textwrap.indent(render(found), "    ")]
    return "\n".join(lines)


def about_of(entry: Entry, found: Sequence[Problem]) -> tuple[str, ...]:
    """Return the parameters that a rule reads or, if no rule reports the problem, those of the example."""
    return entry.reads or (found[0].about if found else ())


def problems_of(example: Example | None, problem_id: str) -> list[Problem]:
    """Return the problems of this id that `deepy check` reports for an example."""
    return [problem for problem in check_example(example) if problem.id == problem_id] if example else []


def _id(word: str) -> str:
    return word.strip("[]").replace("_", "-")
