"""The output formats of `deepy check` for other programs: one line per problem, GitHub, GitLab, SARIF and JUnit."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from neoxargs.base.problems import SET, Place, Problem, printable, sentence

#: The schema that SARIF files name (OASIS, version 2.1.0, errata 01).
SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def concise(problems: Sequence[Problem], files: Sequence[str]) -> str:
    """Return one line per problem."""
    lines = []
    for problem in problems:
        place = f"{printable(str(problem.where))}: " if problem.where else ""
        lines.append(f"{place}{problem.severity}: {_one_line(sentence(problem))} [{problem.id}]\n")
    return "".join(lines)


def github(problems: Sequence[Problem], files: Sequence[str]) -> str:
    """Return workflow commands of GitHub Actions, which show each problem at its line of a pull request."""
    lines = []
    for problem in problems:
        where = _in_file(problem)
        values: dict[str, object] = {"title": f"deepy ({problem.id})"}
        if where:
            values |= {"file": _relative(where.file), "line": max(1, where.line)}
        if where and where.line:
            values |= {"col": where.column, "endColumn": where.column + max(1, where.width)}
        properties = ",".join(f"{name}={_escaped(str(value), ',:')}" for name, value in values.items())
        lines.append(f"::{problem.severity} {properties}::{_escaped(_message(problem))}\n")
    return "".join(lines)


def _escaped(text: str, more: str = "") -> str:
    return "".join(f"%{ord(letter):02X}" if letter in "%\r\n" + more else letter for letter in text)


def gitlab(problems: Sequence[Problem], files: Sequence[str]) -> str:
    """Return a report of GitLab's Code Quality."""
    from hashlib import sha256

    times: Counter[str] = Counter()
    issues = []
    for problem in problems:
        where = _in_file(problem)
        path = _relative(where.file if where else files[0])
        # Without the line, so that a problem is the same one when lines are added above it.
        kind = f"{problem.id}\0{path}\0{sentence(problem)}"
        times[kind] += 1
        issues.append(
            {
                "description": _one_line(_message(problem).replace("\n", "; ")),
                "check_name": problem.id,
                "fingerprint": sha256(f"{kind}\0{times[kind]}".encode()).hexdigest(),
                "severity": "major" if problem.severity == "error" else "minor",
                "location": {"path": path, "lines": {"begin": max(1, where.line) if where else 1}},
            }
        )
    return json.dumps(issues, indent=2) + "\n"


def sarif(problems: Sequence[Problem], files: Sequence[str]) -> str:
    """Return a SARIF 2.1.0 log, which GitHub's code scanning and many editors read."""
    ids = list(dict.fromkeys(problem.id for problem in problems))
    rules = [{"id": each, "help": {"text": f"deepy explain {each}"}} for each in ids]
    run = {
        "tool": {"driver": {"name": "deepy", "rules": rules}},
        "columnKind": "unicodeCodePoints",
        "results": [_sarif_result(problem, ids.index(problem.id), files[0]) for problem in problems],
    }
    return json.dumps({"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _sarif_result(problem: Problem, index: int, file: str) -> dict[str, Any]:
    """Return a problem; one without a place is of the first file, because GitHub refuses results without a location."""
    result: dict[str, Any] = {
        "ruleId": problem.id,
        "ruleIndex": index,
        "level": problem.severity,
        "message": {"text": _message(problem)},
        "locations": [{"physicalLocation": _sarif_place(_in_file(problem) or Place(file, 0, 0))}],
    }
    if also := [place for place in problem.also if place.file != SET]:
        result["relatedLocations"] = [{"physicalLocation": _sarif_place(place)} for place in also]
    if problem.edits and all(edit.do == "replace" and edit.safe and edit.where.file != SET for edit in problem.edits):
        changes = [
            {
                "artifactLocation": {"uri": _uri(edit.where.file)},
                "replacements": [{"deletedRegion": _region(edit.where), "insertedContent": {"text": edit.text}}],
            }
            for edit in problem.edits
        ]
        result["fixes"] = [{"artifactChanges": changes}]
    return result


def _sarif_place(place: Place) -> dict[str, Any]:
    location: dict[str, Any] = {"artifactLocation": {"uri": _uri(place.file)}}
    return location | ({"region": _region(place)} if place.line else {})


def _region(place: Place) -> dict[str, int]:
    return {"startLine": place.line, "startColumn": place.column, "endColumn": place.column + place.width}


def _uri(file: str) -> str:
    path = _relative(file)
    return ("file://" if os.path.isabs(path) else "") + quote(path)


def junit(problems: Sequence[Problem], files: Sequence[str]) -> str:
    """Return a JUnit report with a test case per problem, which fails for an error."""
    from xml.sax.saxutils import escape, quoteattr

    cases = []
    for problem in problems:
        where, text = _in_file(problem), escape(_message(problem))
        path = printable(where.file if where else files[0])
        title = f"{problem.id} at line {where.line}" if where and where.line else problem.id
        head = f"    <testcase classname={quoteattr(path)} name={quoteattr(title)}>\n"
        what = quoteattr(_one_line(sentence(problem)))
        body = f"<failure type={quoteattr(problem.id)} message={what}>{text}</failure>"
        if problem.severity == "warning":
            body = f"<system-out>{text}</system-out>"
        cases.append(f"{head}      {body}\n    </testcase>\n")
    failures = sum(problem.severity == "error" for problem in problems)
    cases = cases or [f'    <testcase classname={quoteattr(printable(files[0]))} name="deepy check"/>\n']
    counts = f'tests="{len(cases)}" failures="{failures}" errors="0"'
    return (
        f'<?xml version="1.0" encoding="utf-8"?>\n<testsuites name="deepy" {counts}>\n'
        f'  <testsuite name="deepy check" {counts}>\n{"".join(cases)}  </testsuite>\n</testsuites>\n'
    )


def _in_file(problem: Problem) -> Place | None:
    """Return the place of a problem if it is in a file."""
    return problem.where if problem.where and problem.where.file != SET else None


def _message(problem: Problem) -> str:
    """Return the sentence, with the hint in a second line, and the `--set` that is wrong."""
    said = problem.to_json()
    prefix = f"{problem.where}: " if problem.where and problem.where.file == SET else ""
    lines = [prefix + sentence(problem), *([said["hint"]] if said["hint"] else [])]
    return "\n".join(printable(line) for text in lines for line in text.split("\n"))


def _one_line(text: str) -> str:
    return text.replace("\n", " ")


def _relative(file: str) -> str:
    """Return a path from the working directory, which is the repository in CI, if the file is inside."""
    path = os.path.relpath(file)
    return os.path.abspath(file) if path.startswith("..") else path


Format = Callable[[Sequence[Problem], Sequence[str]], str]
FORMATS: Mapping[str, Format] = {each.__name__: each for each in (concise, github, gitlab, sarif, junit)}
