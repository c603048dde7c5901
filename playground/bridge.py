"""What the page asks Python: the functions behind the commands, on texts instead of files.

Runs in the browser, in the current folder of pyodide's file system in memory, and in tests/test_playground.py under
CPython.
"""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from neoxargs import cli
from neoxargs.base.files import Text
from neoxargs.base.problems import Problem, in_order
from neoxargs.base.request import Request
from neoxargs.commands.check.command import described, find
from neoxargs.commands.lsp.answers import Edited, completions
from neoxargs.commands.lsp.cursor import cursor_at
from neoxargs.hosts.device_table import ASSUMED_DEVICE, DEVICES

sys.argv = ["deepy"]  # the name of the program in its messages
#: What can be judged without the files that a configuration names, and without the machine that it is for.
SUBJECTS = ("values", "program", "machine")


def answer(name: str, arguments: str) -> str:
    """Call a function of this module; arguments and answer are JSON."""
    return json.dumps(globals()[name](*json.loads(arguments)))


def devices() -> dict[str, Any]:
    """Return the names of the GPUs to choose from, and the one that a plan assumes."""
    return {"names": [name for name, each in DEVICES.items() if each.kind == "cuda"], "assumed": ASSUMED_DEVICE}


def check(name: str, text: str, gpus: int) -> dict[str, Any]:
    """Return the problems of a file, each with the text after its correction, and the summary of the run."""
    Path(name).write_text(text, encoding="utf-8")
    spec, problems, _, other = find(Request([name], gpus=gpus), SUBJECTS)
    edited = Edited(Text(name, text), gpus)
    return {
        "problems": [_problem(each, edited) for each in in_order(problems)],
        "summary": described(spec, other),
    }


def _problem(problem: Problem, edited: Edited) -> dict[str, Any]:
    fixed = edited.correction(problem)
    return problem.to_json() | {
        "width": problem.where.width if problem.where else 0,
        "also": [place.line for place in problem.also if place.line],
        "fixed": fixed if fixed != edited.text.text else None,
        "certain": all(edit.safe for edit in problem.edits),
    }


def explain(name: str, text: str, line: int, column: int, gpus: int) -> str:
    """Return what `deepy explain` says of the key at a position, both counted from 0; "" if there is none."""
    Path(name).write_text(text, encoding="utf-8")
    return Edited(Text(name, text), gpus).described(cursor_at(text.split("\n"), line, column), markdown=False)


def complete(text: str, line: int, column: int) -> dict[str, Any]:
    """Return the words that can stand at a position, and the column where the word begins that they replace."""
    cursor = cursor_at(text.split("\n"), line, column)
    return {
        "begin": cursor.begin,
        "is_value": cursor.in_value,
        "words": [each._asdict() for each in completions(cursor)],
    }


def run(files: dict[str, str], words: list[str], writes: str = "page.html") -> dict[str, Any]:
    """Run a command and return its exit code, what it prints, and the text of the file that it writes, or "".

    files: name -> text of those that it reads.
    """
    Path(writes).unlink(missing_ok=True)
    for name, text in files.items():
        Path(name).write_text(text, encoding="utf-8")
    printed = StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        try:
            code = cli.main(words)
        except SystemExit as stop:  # a wrong command line
            code = int(stop.code or 0)
    written = Path(writes).read_text(encoding="utf-8") if Path(writes).exists() else ""
    return {"code": code, "printed": printed.getvalue(), "written": written}
