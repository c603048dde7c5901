"""Python files as a source of conversations, beside files of JSON lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from neoxargs.data import python_functions
from neoxargs.data.chat import sources
from neoxargs.data.conversation import Form
from tests.support.chat import IGNORED, tokenised
from tests.support.snapshots import pinned

MODULE = 'def double(x):\n    """Return x\n    twice."""\n    return x * 2\n'


def written(folder: Path, *words: str) -> list[tuple[str, str]]:
    """Return the texts of the conversations that are written, and their trained parts."""
    pairs = tokenised(folder / "out", *words, "--tokenizer-type=ByteLevelTokenizer", "--chat-template=headings")
    return [(_text(tokens), _text(label for label in labels if label != IGNORED)) for tokens, labels in pairs]


def _text(ids) -> str:
    return bytes(id_ for id_ in ids if id_ < 256).decode()


def test_a_python_file_beside_json_lines(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(MODULE)
    (tmp_path / "empty.py").write_text("x = 1\n")
    row = {"prompt": "double", "completion": "x * 2"}
    (tmp_path / "b.jsonl").write_text(json.dumps(row) + "\n")
    files = [str(tmp_path / name) for name in ("a.py", "empty.py", "b.jsonl")]
    pinned(written(tmp_path, *files))
    forms = sources.forms_of(sources.find(files), [])
    assert forms[files[0]] == Form(("messages",)) and forms[files[2]] == Form(("prompt", "completion"))


def test_functions_of_the_standard_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {name: sources.find([name]) for name in python_functions.SOURCES}
    train, validation = map(set, found.values())
    assert train and validation and not train & validation
    short = [path for path in found["python-functions/train"] if path.name == "bisect.py"]
    monkeypatch.setattr(python_functions, "modules", lambda _: short)
    pairs = written(tmp_path, "python-functions/train")
    assert [answer.partition("(")[0] for _, answer in pairs] == [
        "def insort_right", "def bisect_right", "def insort_left", "def bisect_left",
    ]  # fmt: skip
