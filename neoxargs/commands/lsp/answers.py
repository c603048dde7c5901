"""What the server answers, without its protocol: problems of texts, descriptions, completions."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

from neoxargs.base.files import Text
from neoxargs.base.problems import Problem, Problems
from neoxargs.base.request import Request
from neoxargs.commands.check.fix import find_in
from neoxargs.commands.explain.command import explain
from neoxargs.commands.lsp.cursor import Cursor
from neoxargs.registry import REGISTRY, normal
from neoxargs.resolve.values.describe_type import describe_type
from neoxargs.resolve.yaml.edit import NotEditable, corrected

#: A key at the top level, in YAML or in JSON.
_TOP_KEY = re.compile(r"^(?:\{?\s*\")?([A-Za-z_][\w.-]*)\"?\s*:", re.MULTILINE)


class Completion(NamedTuple):
    """A word that can stand at the position, and what it means."""

    word: str
    detail: str
    meaning: str


def problems_of(text: Text, gpus: int | None) -> Sequence[Problem]:
    """Return the problems of a file as it is in the editor, without those of files that it names.

    None if it has no key of ours: an editor sends every YAML file.
    """
    keys = {normal(key) for key in _TOP_KEY.findall(text.text)}
    if not any(REGISTRY.find(key) or key in REGISTRY.sections for key in keys):
        return []
    [found] = find_in([Request([text.name], gpus=gpus)])([text])
    return found.problems


def described(cursor: Cursor, file: str, gpus: int | None) -> str:
    """Return what `deepy explain` says of the key at a position, with its value in the saved file; "" if no key."""
    if not cursor.key:
        return ""
    for files in ([file], []):
        try:
            return explain(cursor.name, Request(files, gpus=gpus))
        except Problems:  # of the file, or of a name that is not known, which its diagnostic says
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
    for value in _choices(parameter.type) if parameter else ():
        default = " (default)" if parameter and parameter.default == value else ""
        word = str(value).lower() if isinstance(value, bool) else str(value)
        yield Completion(word, f"{name}{default}", parameter.description if parameter else "")


def _choices(wanted: Any) -> Iterator[Any]:
    """Yield the values of a type that has only a few."""
    if wanted is bool:
        yield from (True, False)
    elif get_origin(wanted) is Literal:
        yield from get_args(wanted)
    else:
        for member in get_args(wanted):
            yield from _choices(member)


def correction(text: Text, problem: Problem) -> str | None:
    """Return the text after the correction of a problem; None if it has none in this file."""
    if not problem.edits or any(edit.where.file != text.name for edit in problem.edits):
        return None
    try:
        return corrected(text, problem.edits).text
    except NotEditable:
        return None


def declaration(problem: Problem) -> list[tuple[str, int, int]]:
    """Return file, line and column of the other places of a problem, as far as they are in files."""
    return [
        (str(Path(place.file).resolve()), place.line, place.column)
        for place in problem.also
        if os.path.isfile(place.file)
    ]
