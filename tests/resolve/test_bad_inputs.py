"""Every mistake of tests/support/bad_inputs.py raises problems with a place and a sentence, never a traceback.

`snapshots/bad_inputs.txt` holds all messages. `UPDATE=1 pytest tests/resolve/test_bad_inputs.py` writes it; read the
diff before you commit it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from neoxargs.base.problems import Problem, render
from neoxargs.resolve import resolve
from tests.support.bad_inputs import BAD, Bad
from tests.support.refused import refused

SNAPSHOT = Path(__file__).parent / "snapshots" / "bad_inputs.txt"


def problems_of(bad: Bad, folder: Path) -> list[Problem]:
    for name, content in bad.files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return refused(resolve, bad.paths, bad.sets, bad.directory, gpus=bad.gpus)


@pytest.fixture(scope="module")
def messages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Problem]]:
    """Title of each row -> its problems."""
    directory, problems = Path.cwd(), {}
    for bad in BAD:
        folder = tmp_path_factory.mktemp("bad")
        os.chdir(folder)
        try:
            problems[bad.title] = problems_of(bad, folder)
        finally:
            os.chdir(directory)
    return problems


def snapshot_text(messages: dict[str, list[Problem]]) -> str:
    blocks = [f"### {title}\n\n{render(problems)}\n" for title, problems in messages.items()]
    return "\n\n".join(blocks)


def blocks(text: str) -> dict[str, str]:
    return {block.split("\n")[0]: block.strip() for block in text.split("### ")[1:]}


def test_messages_are_those_of_the_snapshot(messages: dict[str, list[Problem]]) -> None:
    text = snapshot_text(messages)
    if os.environ.get("UPDATE"):
        SNAPSHOT.parent.mkdir(exist_ok=True)
        SNAPSHOT.write_text(text, encoding="utf-8")
    assert blocks(text) == blocks(SNAPSHOT.read_text(encoding="utf-8"))


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.title)
def test_every_sentence_is_a_clause(bad: Bad, messages: dict[str, list[Problem]]) -> None:
    for problem in messages[bad.title]:
        assert problem.what
        assert not re.match("[A-Z][a-z]", problem.what), problem.what
        assert not problem.what.endswith("."), problem.what


def test_titles_are_unique() -> None:
    assert len({bad.title for bad in BAD}) == len(BAD) >= 100
