"""Conversations about the functions in Python files: a function's signature and documentation, and its source.

They need no download: `python-functions/train` and `python-functions/validation` select modules of Python's standard
library, each module always for the same part.
"""

from __future__ import annotations

import ast
import json
import sysconfig
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from neoxargs.data.text_files import Raw, standard_library

#: Key of the messages.
KEY = "messages"
#: Name of a source -> whether its modules are for validation.
SOURCES = {"python-functions/train": False, "python-functions/validation": True}
#: One of this many modules is for validation.
MODULES_PER_VALIDATION = 10


class Function(NamedTuple):
    """A documented function."""

    line: int
    question: str
    """Signature and first paragraph of the documentation, on one line."""
    source: str
    """The function's source without its documentation, dedented."""

    def row(self) -> dict[str, list[dict[str, str]]]:
        """Return the conversation as a line of a JSON-lines file has it."""
        return {KEY: [{"role": "user", "content": self.question}, {"role": "assistant", "content": self.source}]}


def modules(source: str) -> list[Path]:
    """Return the modules of the standard library that a source, a key of SOURCES, selects."""
    root = sysconfig.get_paths()["stdlib"]
    named = ((path, path.relative_to(root).as_posix()) for path in standard_library())
    return [path for path, name in named if is_for_validation(name) == SOURCES[source]]


def is_for_validation(name: str) -> bool:
    """Whether a module, such as `json/decoder.py`, is for validation; the same on every machine."""
    return zlib.crc32(name.encode()) % MODULES_PER_VALIDATION == 0


def documents(path: Path) -> Iterator[Raw]:
    """Yield the functions of a file as the lines of a JSON-lines file with conversations."""
    found = list(functions(path.read_bytes().decode(errors="replace")))
    for function in found:
        line = json.dumps(function.row(), ensure_ascii=False).encode(errors="replace")
        # The size of the file, spread over its functions, for the progress bar.
        yield Raw(str(path), function.line, path.stat().st_size // len(found), line)


def functions(text: str) -> Iterator[Function]:
    """Yield the documented functions of a module, in the order of their lines; none if it is not valid Python."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    lines = text.splitlines()
    found = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    for node in sorted(found, key=lambda node: node.lineno):
        documentation = ast.get_docstring(node)
        # Code besides the documentation, on lines of its own.
        if documentation and len(node.body) > 1 and node.body[0].end_lineno != node.body[1].lineno:
            yield Function(node.lineno, _question(node, documentation), _source(node, lines))


def _question(node: ast.FunctionDef | ast.AsyncFunctionDef, documentation: str) -> str:
    paragraph, *_ = documentation.split("\n\n")
    return f"{node.name}({ast.unparse(node.args)}): {' '.join(paragraph.split())}"


def _source(node: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> str:
    first, last = node.body[0].lineno, node.body[0].end_lineno or 0
    kept = [*lines[node.lineno - 1 : first - 1], *lines[last : node.end_lineno]]
    return "\n".join(_dedented(line, node.col_offset).rstrip() for line in kept).strip("\n")


def _dedented(line: str, width: int) -> str:
    """Return the line without `width` blanks at its start, if it has them; a line inside of a text may have fewer."""
    return line[width:] if not line[:width].strip() else line
