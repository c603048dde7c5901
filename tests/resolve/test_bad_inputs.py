"""Every mistake is told in a sentence, at its place, and never as a traceback.

`snapshots/bad_inputs.txt` holds every message, to be read in one go. `UPDATE=1 pytest tests/resolve/test_bad_inputs.py`
writes it anew; read the difference before you commit it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from neoxargs.problems import Problem, Problems, render
from neoxargs.resolve import resolve
from tests.support.bad_inputs import BAD, Bad

SNAPSHOT = Path(__file__).parent / "snapshots" / "bad_inputs.txt"

#: About what is not there, so there is no line to point at.
NO_LINE = (
    "a file that is not there",
    "a file that is not there, spelt quite otherwise",
    "a file in a folder that is not there",
    "a file that is not there, in a folder without any",
    "two files that are not there",
    "a folder for -d that is not there",
    "a directory instead of a file",
    "the same file twice",
    "a name with a NUL in it",
    "20 MB",
    "binary",
    "NUL bytes in text",
    "UTF-16",
    "nothing",
    "only comments",
    "only null",
    "required parameters missing",
    "the batch size is missing",
)


def told(bad: Bad, folder: Path) -> list[Problem]:
    for name, content in bad.files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(Problems) as raised:
        resolve(bad.paths, bad.sets, bad.directory, gpus=bad.gpus)
    return raised.value.problems


@pytest.fixture(scope="module")
def messages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Problem]]:
    """The problems of every row, by its title."""
    here, found = Path.cwd(), {}
    for bad in BAD:
        folder = tmp_path_factory.mktemp("bad")
        os.chdir(folder)
        try:
            found[bad.title] = told(bad, folder)
        finally:
            os.chdir(here)
    return found


def drawn(messages: dict[str, list[Problem]]) -> str:
    blocks = [f"### {title}\n\n{render(problems)}\n" for title, problems in messages.items()]
    return "\n\n".join(blocks)


def blocks(text: str) -> dict[str, str]:
    return {block.split("\n")[0]: block.strip() for block in text.split("### ")[1:]}


def test_every_message_reads_as_reviewed(messages: dict[str, list[Problem]]) -> None:
    text = drawn(messages)
    if os.environ.get("UPDATE"):
        SNAPSHOT.parent.mkdir(exist_ok=True)
        SNAPSHOT.write_text(text, encoding="utf-8")
    assert blocks(text) == blocks(SNAPSHOT.read_text(encoding="utf-8"))


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.title)
def test_every_problem_has_its_place(bad: Bad, messages: dict[str, list[Problem]]) -> None:
    for problem in messages[bad.title]:
        assert problem.what
        assert not re.match("[A-Z][a-z]", problem.what), problem.what
        assert not problem.what.endswith("."), problem.what
        if bad.title not in NO_LINE:
            assert problem.where
            assert problem.where.line > 0
            assert problem.where.column > 0


def test_titles_are_told_apart() -> None:
    assert len({bad.title for bad in BAD}) == len(BAD) >= 100
    assert set(NO_LINE) <= {bad.title for bad in BAD}
