"""`deepy check DIR`: check the runs of a repository that a table names (table.py), and tell each problem once."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import chdir
from typing import Any

from neoxargs.base.files import Text
from neoxargs.base.problems import (
    SET,
    Place,
    Problem,
    Problems,
    did_you_mean,
    has_errors,
    in_order,
    listed,
    report,
    sentence,
    with_note,
)
from neoxargs.base.record import Record, replace
from neoxargs.base.request import Request
from neoxargs.commands.check import command
from neoxargs.commands.check.fix import Fixes
from neoxargs.commands.check.table import Run, Table, find_table, read_table
from neoxargs.facts.description import counted
from neoxargs.resolve.suppressions import used_nowhere
from neoxargs.resolve.yaml.read import configurations
from neoxargs.runs import summary
from neoxargs.runs.run_spec import RunSpec

MISSING = """\
deepy check: {0} is in no repository with a table of runs, which says what is checked
to check one run, name its files: deepy check {1} --gpus N
to check all runs of a repository, write a file deepy.toml in its root, for example:

    gpus = 8

    [runs]
    small = "configs/small.yml"
    large = {{ files = ["configs/large.yml", "configs/cluster.yml"], gpus = 64 }}

or the same in pyproject.toml, as [tool.deepy] and [tool.deepy.runs]
"""
#: Runs that are named with a problem at most.
MOST_RUNS = 4


class Chosen(Record):
    """The runs of a table that are checked. folder: that of the table, in which runs are launched."""

    folder: str
    table: Table
    runs: Sequence[Run]

    def corrected(self, make: Callable[..., Fixes], request: Request, unsafe: bool) -> Fixes:
        """Return corrections of the files of these runs; names and places are from the working directory.

        make: `fixes` or `write` of fix.py. Raises Problems.
        """
        files = {file for run in self.runs for file in run.files}
        sharing = (run for run in self.table.runs if run not in self.runs and not files.isdisjoint(run.files))
        requests, others = ([_request(request, run) for run in runs] for runs in (self.runs, sharing))
        try:
            with chdir(self.folder):
                done = make(requests, unsafe, others)
        except Problems as stop:
            raise Problems(from_here(problem, self.folder) for problem in stop.problems) from None
        before, after = (
            [Text(_from_here(text.name, self.folder), text.text) for text in texts]
            for texts in (done.before, done.after)
        )
        fixed = [from_here(problem, self.folder) for problem in done.fixed]
        refused = [(from_here(problem, self.folder), from_here(why, self.folder)) for problem, why in done.refused]
        return Fixes(before, after, fixed, refused, done.in_command)


def _request(request: Request, run: Run) -> Request:
    return replace(request, files=run.files, gpus=run.gpus, ignored=run.ignored)


def choose(words: Sequence[str], changed: bool) -> Chosen | None:
    """Return the runs to check; None, and print what to write, if there is no table.

    words: files that have changed, or at most one folder; the runs that have a file in it are chosen.
    """
    inside = "" if changed or not words else words[0]
    path = find_table(inside or ".")
    if path is None:
        files = [os.path.join(inside, name) for name in configurations(inside or ".")]
        text = MISSING.format(inside or "this folder", files[0] if files else "FILE ...")
        print(text, end="", file=sys.stderr)
        return None
    folder, name = os.path.split(path)
    names = [os.path.realpath(word) for word in words]
    with chdir(folder):
        table = read_table(name)
        is_about_all = not words or os.path.realpath(name if changed else os.curdir) in names
        runs = [run for run in table.runs if is_about_all or _has(run, names)]
        missing = [os.path.relpath(name) for name in names if changed and not os.path.exists(name)]
        if missing:
            known = {file for run in table.runs for file in run.depends_on}
            table = replace(table, problems=[*table.problems, *(_missing(each, known) for each in missing)])
    if inside and not runs and table.runs:
        what = f"deepy check: no run of {os.path.relpath(path)} has a file in {inside}"
        print(what, file=sys.stderr)
        return None
    return Chosen(folder, table, runs)


def _missing(name: str, files: Iterable[str]) -> Problem:
    removed = "leave out files that were removed, for example with `git diff --name-only --diff-filter=d`"
    hint = did_you_mean(name, files) or removed
    return Problem("there is no such file", Place(name, 0, 0), hint, id="file-missing")


def _has(run: Run, names: Sequence[str]) -> bool:
    files = [os.path.realpath(file) for file in run.depends_on]
    return any(file == name or file.startswith(os.path.join(name, "")) for file in files for name in names)


def watched(words: Sequence[str], changed: bool) -> list[str]:
    """Return the table and the files of its runs, in all of which a change can matter."""
    path = find_table("" if changed or not words else words[0])
    if path is None:
        return []
    folder, name = os.path.split(path)
    with chdir(folder):
        runs = read_table(name).runs
    names = [os.path.join(folder, file) for run in runs for file in run.depends_on]
    return list(dict.fromkeys([path, *names]))


class Found(Record):
    """What is found in one run."""

    run: Run
    spec: RunSpec | None
    problems: Sequence[Problem]
    unchecked: Sequence[str]


def find(chosen: Chosen, request: Request) -> list[Found]:
    """Check each run in the folder of the table."""
    with chdir(chosen.folder):
        found = [Found(run, *command.find(_request(request, run))[:3]) for run in chosen.runs]
    others = [run for run in chosen.table.runs if run not in chosen.runs]
    files = [run.files for run in (*chosen.runs, *others)]
    kept = used_nowhere([*(each.problems for each in found), *([] for _ in others)], files)
    return [replace(each, problems=problems) for each, problems in zip(found, kept, strict=False)]


Told = Mapping[Problem, Sequence[str]]


def told_once(chosen: Chosen, found: Sequence[Found]) -> Told:
    """Return problem -> the runs that have it, with places from the working directory; those of the table have none."""
    first: dict[object, Problem] = {}
    runs: dict[Problem, list[str]] = {problem: [] for problem in chosen.table.problems}
    for each in found:
        for problem in each.problems:
            same = problem.id, sentence(problem), problem.where, problem.severity
            names = runs.setdefault(first.setdefault(same, problem), [])
            names += [each.run.name] * (each.run.name not in names)
    return {from_here(problem, chosen.folder): names for problem, names in runs.items()}


def from_here(problem: Problem, folder: str) -> Problem:
    """Return a problem of files in a folder with places from the working directory."""

    def moved(place: Place) -> Place:
        return place if place.file == SET else place._replace(file=_from_here(place.file, folder))

    edits = tuple(replace(edit, where=moved(edit.where)) for edit in problem.edits)
    where = problem.where and moved(problem.where)
    return replace(problem, where=where, also=tuple(map(moved, problem.also)), edits=edits)


def _from_here(name: str, folder: str) -> str:
    return name if os.path.isabs(name) else os.path.relpath(os.path.join(folder, name))


def _with_runs(problem: Problem, names: Sequence[str], chosen: Chosen) -> Problem:
    """Return a problem with the runs that have it in its hint, unless all have it."""
    if not names or len(names) == len(chosen.runs):
        return problem
    return with_note(problem, f"in the run{'s' * (len(names) > 1)} {listed(names, 'and', most=MOST_RUNS)}")


def run(chosen: Chosen, request: Request, output: str, fixed: Sequence[Problem] | None, strict: bool) -> int:
    """Print the problems of all runs, and return the exit code."""
    found = find(chosen, request)
    told = told_once(chosen, found)
    failed = has_errors(told) or (strict and bool(told))
    if output == "json":
        print(json.dumps(_to_json(chosen, found, told, fixed, failed), indent=2))
        return int(failed)
    problems = [_with_runs(problem, names, chosen) for problem, names in told.items()]
    if output != "text":
        from neoxargs.commands.check.formats import FORMATS

        print(FORMATS[output](in_order(problems), [_table_name(chosen)]), end="")
        return int(failed)
    report(problems)
    if problems:
        print(file=sys.stderr)
    print("\n".join(_lines(chosen, found, problems, failed, fixed is None)))
    return int(failed)


def _table_name(chosen: Chosen) -> str:
    return os.path.relpath(os.path.join(chosen.folder, chosen.table.name))


def _lines(
    chosen: Chosen, found: Sequence[Found], problems: Sequence[Problem], failed: bool, may_fix: bool
) -> Iterator[str]:
    if not failed:
        yield "ok" if found else f"ok: no run of {_table_name(chosen)} contains these files"
    rows = {"runs": [_line(each) for each in found]}
    rows["unchecked"] = list(_unchecked(found))
    rows["fixable"] = [command.fixable(problems)] if may_fix else []
    for label, lines in rows.items():
        for number, line in enumerate(filter(None, lines)):
            yield f"{('' if number else label).ljust(summary.LABEL)}{line}"


def _unchecked(found: Sequence[Found]) -> Iterator[str]:
    """Yield what is not checked: of all runs, then of some, with their names. Each is told once."""
    of: dict[str, list[str]] = {}
    for each in found:
        for what in each.unchecked:
            of.setdefault(what, []).append(each.run.name)
    together: dict[tuple[str, ...], list[str]] = {}
    for what, names in of.items():
        together.setdefault(tuple(names), []).append(what)
    for group in sorted(together, key=len, reverse=True):
        whose = "" if len(group) == len(found) else f"{listed(group, 'and', most=MOST_RUNS)}: "
        yield f"{whose}{'; '.join(together[group])}"


def _line(found: Found) -> str:
    counts = [sum(problem.severity == kind for problem in found.problems) for kind in ("error", "warning")]
    parts = [counted(count, kind) for count, kind in zip(counts, ("error", "warning"), strict=True) if count]
    return f"{found.run.name}, {counted(found.run.gpus, 'GPU')}: {listed(parts, 'and') or 'ok'}"


def _to_json(
    chosen: Chosen, found: Sequence[Found], told: Told, fixed: Sequence[Problem] | None, failed: bool
) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "ok": not failed,
        "problems": [problem.to_json() | {"runs": list(names)} for problem, names in told.items()],
        "runs": {
            each.run.name: {
                "ok": not has_errors(each.problems),
                "files": list(each.run.files),
                "gpus": each.run.gpus,
                **(summary.to_json(each.spec) if each.spec else {}),
                "unchecked": list(each.unchecked),
            }
            for each in found
        },
    }
    return answer | ({} if fixed is None else {"fixed": [problem.to_json() for problem in fixed]})
