"""The sources of conversations: files of JSON lines, and Python files with documented functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from neoxargs.base.problems import Problem, Problems, listed
from neoxargs.data import python_functions, text_files
from neoxargs.data.conversation import Form, detect, keys_of
from neoxargs.data.text_files import Raw

#: Lines that are searched for a conversation of a known form.
SEARCHED = 100


def find(texts: Sequence[str]) -> list[Path]:
    """Return the files that paths, folders, patterns and `python_functions.SOURCES` select.

    Raises Problems if one has neither JSON lines nor Python's functions.
    """
    named = [name for name in texts if name not in python_functions.SOURCES]
    files = text_files.find(named, text_files.JSON_LINES) if named or not texts else []
    problems = [_not_lines(file) for file in files if not text_files.ends_in(file, (*text_files.JSON_LINES, ".py"))]
    if problems:
        raise Problems(problems)
    library = [
        module for name in texts if name in python_functions.SOURCES for module in python_functions.modules(name)
    ]
    return [*files, *library]


def _not_lines(file: Path) -> Problem:
    hint = f"write one conversation per line, in a file that ends in {listed(text_files.COMMON_JSON_LINES)}"
    if file.suffix == ".json":
        hint += f"; to convert a JSON list, run: jq -c '.[]' {file} > {file.with_suffix('.jsonl')}"
    return Problem(f"{file} is not a JSON-lines file", hint=hint, id="chat-file-not-json-lines")


def conversations(files: Sequence[Path]) -> Iterator[Raw]:
    """Yield the lines of all files; a function in a Python file is a line."""
    for file in files:
        yield from python_functions.documents(file) if file.suffix == ".py" else text_files.documents([file])


def forms_of(files: Sequence[Path], keys: Sequence[str]) -> dict[str, Form]:
    """Return for each file where its lines have their conversations: under the given keys, or else as detected.

    Raises Problems with every file that has no conversation in its first lines.
    """
    forms = {str(file): Form((python_functions.KEY,)) for file in files if file.suffix == ".py"}
    problems = []
    for file in (file for file in files if file.suffix != ".py"):
        found = Form(tuple(keys)) if keys else _form(file)
        if isinstance(found, Form):
            forms[str(file)] = found
        elif found is not None:
            problems.append(found)
    if problems:
        raise Problems(problems)
    return forms


def _form(file: Path) -> Form | Problem | None:
    """Return the form of the first line that has a known one; None if the file is empty."""
    unknown = None
    for raw in islice(conversations([file]), SEARCHED):
        row = text_files.json_tree(raw, raw.line or b"")
        form = detect(row) if isinstance(row, dict) else None
        if form:
            return form
        unknown = unknown or (row if isinstance(row, Problem) else _unknown_form(raw, row))
    return unknown


def _unknown_form(raw: Raw, row: Any) -> Problem:
    where = text_files.place(raw, raw.line or b"")
    if not isinstance(row, dict):
        return Problem("this line is not a JSON object", where=where, id="text-line-not-an-object")
    what = f"this line has no conversation: {keys_of(row)}"
    hint = "set --json-key to the key of the list of messages, or to two keys: --json-key QUESTION,ANSWER"
    return Problem(what, where=where, hint=hint, id="chat-form-unknown")
