"""Pins sentences in `snapshots/test_MODULE.txt` beside the test module; `UPDATE=1 pytest FILE` writes them.

A test asserts the id and the place of a problem; how it is worded is pinned here, and nowhere else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from difflib import ndiff
from pathlib import Path
from pprint import pformat
from typing import Any

import pytest

from neoxargs.base.problems import Problem, render
from tests.support.paths import ROOT

#: A folder that pytest made for a test.
TMP = re.compile(r"(?:/[\w.-]+)*/pytest-of-\w+/pytest-\d+(?:/popen-gw\d+)?/[\w-]+")

#: The line that a problem points at, and the carets below it.
EXCERPT = re.compile(r"^  (?:--set |\d+ \| ).*\n[ |]*\^+$\n?", re.MULTILINE)


class Running:
    """The test that runs: its snapshot, its name, and how many values it has pinned."""

    file, name, values = Path(), "", 0


def begin(item: pytest.Item) -> None:
    """Pin the next values under the name of this test."""
    Running.file = item.path.parent / "snapshots" / f"{item.path.stem}.txt"
    Running.name, Running.values = item.nodeid.partition("::")[2], 0


def pinned(value: Any, containing: str = "") -> None:
    """Assert that a value is as in the snapshot: a text, problems, or what else can be printed.

    containing: of a text, compare only the lines with these words; of printed problems, those with this `[id]`.
    """
    Running.values += 1
    key, text = f"{Running.name} {Running.values}", _text(value)
    if containing:
        more = r"(\n  .*)*" if containing.startswith("[") else ""
        found = [match[0] for match in re.finditer(rf"^.*{re.escape(containing)}.*{more}", text, re.MULTILINE)]
        assert found, f"{containing!r} is not in:\n{text}"
        text = "\n".join(found)
    blocks = read(Running.file)
    if os.environ.get("UPDATE"):
        stale = [f"{Running.name} {number}" for number in range(Running.values, Running.values + 100)]
        blocks = {each: words for each, words in blocks.items() if each not in stale} | {key: text}
        Running.file.parent.mkdir(exist_ok=True)
        Running.file.write_text(_written(blocks), "utf-8")
    difference = "\n".join(ndiff(blocks.get(key, "").split("\n"), text.split("\n")))
    assert text == blocks.get(key, ""), f"{key} is not as in {Running.file}:\n{difference}"


def read(file: Path) -> dict[str, str]:
    """Return the texts of a snapshot by name of the test and number of the value."""
    if not file.exists():
        return {}
    blocks: dict[str, list[str]] = {}
    names: list[str] = []
    for line in file.read_text("utf-8").split("\n"):
        if line.startswith("### "):
            names = [*(names if names and not blocks[names[-1]] else []), line.removeprefix("### ")]
            blocks[names[-1]] = []
        else:
            for name in names:
                blocks[name].append(line.removeprefix("  "))
    return {name: "\n".join(lines).rstrip("\n") for name, lines in blocks.items()}


def _written(blocks: dict[str, str]) -> str:
    """Return the snapshot; a text that is several values is written once."""
    names: dict[str, list[str]] = {}
    for name, text in blocks.items():
        names.setdefault(text, []).append(name)
    headed = [
        "\n".join([*(f"### {name}" for name in names[text]), *map(_indented, text.split("\n"))]) for text in names
    ]
    return "\n\n".join(headed) + "\n"


def _text(value: Any) -> str:
    if isinstance(value, Problem | Iterator):
        value = [value] if isinstance(value, Problem) else list(value)
    if isinstance(value, list | tuple) and value and all(isinstance(each, Problem) for each in value):
        value = "\n\n".join(render([problem]) for problem in value)
    text = value if isinstance(value, str) else pformat(value, width=116)
    text = EXCERPT.sub("", text) if "^" in text else text  # its width depends on the length of the folder
    return TMP.sub("<tmp>", text).replace(str(ROOT), "<root>").rstrip()


def _indented(line: str) -> str:
    return f"  {line}" if line else ""
