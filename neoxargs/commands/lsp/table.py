"""What the server answers about a table of runs, `deepy.toml` or `[tool.deepy]` in pyproject.toml."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from contextlib import chdir

from neoxargs.base.files import Text
from neoxargs.base.problems import Problem, Problems
from neoxargs.base.request import SHARED_TABLE
from neoxargs.commands.check.table import WILDCARDS, table_of
from neoxargs.resolve.yaml.read import find_file

_QUOTED = re.compile(r"\"([^\"\n]*)\"|'([^'\n]*)'")
_HEADER = re.compile(r"^\s*\[\s*([\w.\s-]+)\]")


def problems_of(table: Text) -> list[Problem]:
    """Return the problems of a table as it is in the editor. Those of its runs belong to their files."""
    folder, name = os.path.split(table.name)
    with chdir(folder):
        problems = table_of(Text(name, table.text)).problems
    return [each for each in problems if each.where and each.where.file == name]


def files_at(table: Text, lines: Sequence[str], line: int, column: int) -> list[str]:
    """Return the file that the text at a position names, or those that its pattern matches; counts from 0."""
    folder, name = os.path.split(table.name)
    headers = [header[1] for each in lines[: line + 1] if (header := _HEADER.match(each))]
    if name == SHARED_TABLE and not re.match(r"\s*tool\s*\.\s*deepy\b", headers[-1] if headers else ""):
        return []
    at = (each for each in _QUOTED.finditer(lines[line]) if each.start() <= column <= each.end())
    word = next((each[1] or each[2] for each in at), "")
    with chdir(folder):
        try:
            found = sorted(glob.glob(word, recursive=True)) if WILDCARDS.intersection(word) else [find_file(word)]
        except Problems:
            return []
        return [os.path.abspath(file) for file in found if os.path.isfile(file)]
