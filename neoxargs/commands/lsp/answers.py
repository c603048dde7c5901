"""What the server answers, without its protocol: problems of texts, descriptions, completions."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import NamedTuple

from neoxargs.base.files import Text
from neoxargs.base.problems import Problem, Problems, sentence
from neoxargs.base.request import Request
from neoxargs.commands.check.fix import find_in
from neoxargs.commands.check.table import find_table, read_table
from neoxargs.commands.explain.command import explain
from neoxargs.commands.lsp.cursor import Cursor
from neoxargs.registry import REGISTRY, normal
from neoxargs.registry.types import choices_of
from neoxargs.resolve.values.describe_type import describe_type
from neoxargs.resolve.yaml.edit import NotEditable, corrected
from neoxargs.resolve.yaml.read import read_text

#: A key at the top level, in YAML or in JSON.
_TOP_KEY = re.compile(r"^(?:\{?\s*\")?([A-Za-z_][\w.-]*)\"?\s*:", re.MULTILINE)


class Completion(NamedTuple):
    """A word that can stand at the position, and what it means."""

    word: str
    detail: str
    meaning: str


def problems_of(text: Text, gpus: int | None) -> list[Problem]:
    """Return the problems of a file as it is in the editor, in the runs that have it; no files that it names are read.

    None if it has no key of ours: an editor sends every YAML file. gpus: of a file that is in no run.
    """
    keys = {normal(key) for key in _TOP_KEY.findall(text.text)}
    if not any(REGISTRY.find(key) or key in REGISTRY.sections for key in keys):
        return []
    requests = runs_of(text.name, gpus)
    given = [name for request in requests for name in request.files]
    if len(requests) == 1:
        given_texts = [Text(text.name, text.text) if _same(name, text.name) else read_text(name) for name in given]
    else:
        given_texts = [Text(next(name for name in given if _same(name, text.name)), text.text)]
    found = [each for of_run in find_in(requests)(given_texts) for each in of_run.problems]
    return list({(each.id, sentence(each), each.where): each for each in found if _is_of(each, text)}.values())


def runs_of(file: str, gpus: int | None) -> list[Request]:
    """Return the runs of the repository's table that have this file (docs/check.md); if none has, the file alone."""
    table = find_table(os.path.dirname(file))
    folder, name = os.path.split(table) if table else ("", "")
    if table:
        with chdir(folder):
            runs = [run for run in read_table(name).runs if any(_same(each, file) for each in run.files)]
        if runs:
            return [
                Request([os.path.join(folder, each) for each in run.files], gpus=run.gpus, ignored=run.ignored)
                for run in runs
            ]
    return [Request([file], gpus=gpus)]


def _same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _is_of(problem: Problem, text: Text) -> bool:
    """Whether a problem is of this file, or of no place: then it is shown at the beginning."""
    return problem.where is None or _same(problem.where.file, text.name)


def described(cursor: Cursor, file: str, gpus: int | None) -> str:
    """Return what `deepy explain` says of the key at a position, with its value in the saved files; "" if no key."""
    if not cursor.key:
        return ""
    for request in (runs_of(file, gpus)[0], Request(())):
        try:
            return explain(cursor.name, request)
        except Problems:  # of the files, or of a name that is not known, which its diagnostic says
            continue
    return ""


def completions(cursor: Cursor) -> list[Completion]:
    """Return the keys of the section at a position, or the values of its key."""
    return list(_values(cursor.name) if cursor.in_value else _keys(cursor.section))


def _keys(section: str) -> Iterator[Completion]:
    prefix = f"{section}." if section else ""
    for name in REGISTRY.sections:
        if name.startswith(prefix) and "." not in (word := name.removeprefix(prefix)):
            yield Completion(word, "section", "")
    for parameter in REGISTRY.parameters.values():
        if parameter.name.startswith(prefix) and "." not in (word := parameter.name.removeprefix(prefix)):
            yield Completion(word, describe_type(parameter.type), parameter.description)


def _values(name: str) -> Iterator[Completion]:
    parameter = REGISTRY.find(name)
    for value in choices_of(parameter.type) if parameter else ():
        default = " (default)" if parameter and parameter.default == value else ""
        word = str(value).lower() if isinstance(value, bool) else str(value)
        yield Completion(word, f"{name}{default}", parameter.description if parameter else "")


def correction(text: Text, problem: Problem) -> str | None:
    """Return the text after the correction of a problem; None if it has none in this file."""
    if not problem.edits or not all(_same(edit.where.file, text.name) for edit in problem.edits):
        return None
    try:
        return corrected(text, problem.edits).text
    except NotEditable:
        return None


def other_places(problem: Problem) -> list[tuple[str, int, int]]:
    """Return file, line and column of the other places of a problem, as far as they are in files."""
    return [
        (str(Path(place.file).resolve()), place.line, place.column)
        for place in problem.also
        if os.path.isfile(place.file)
    ]
