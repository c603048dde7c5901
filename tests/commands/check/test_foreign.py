"""`deepy check` of another program's file judges it for that program; other files still get a suggestion."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from neoxargs.cli import main


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "called"),
    [
        ("ds.json", '{"train_batch_size": 8, "bf16": {"enabled": true}}', "a DeepSpeed JSON"),
        ("my.json", '{"num_layers": 4, "train_batch_size": 8}', ""),
        ("my.json", '{"train_batch_size": 8, "vocab-file": "a"}', ""),
        ("my.yml", "train_batch_size: 8\nbf16: {enabled: true}\n", ""),
    ],
)
def test_only_files_of_other_programs_are_judged_as_such(
    name: str, text: str, called: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(name).write_text(text)
    assert main(["check", name, "--json"]) == (0 if called else 1)
    assert json.loads(capsys.readouterr().out).get("read_as", "").startswith(called)


def test_a_python_program_is_checked_but_not_planned(capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.py").write_text("from transformers import TrainingArguments as A\nargs = A('out', seed=f())\n")
    assert main(["check", "train.py", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["read_as"].startswith("TrainingArguments")
    assert main(["plan", "train.py", "--json"]) == 1
    [problem] = json.loads(capsys.readouterr().out)["problems"]
    assert problem["id"] == "file-of-another-program"


def test_with_other_files_it_is_a_configuration_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    Path("ds.json").write_text('{"train_batch_size": 8, "bf16": {"enabled": true}}')
    Path("my.yml").write_text("num_layers: 2\n")
    assert main(["check", "ds.json", "my.yml", "--json"]) == 1
    assert "read_as" not in json.loads(capsys.readouterr().out)


def test_a_misspelt_key_is_corrected(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path("ds.json")
    path.write_text('{\n  "train_batch_size": 8,\n  "optimzer": {"type": "Adam"}\n}\n')
    assert main(["check", "ds.json", "--fix", "--strict"]) == 0
    assert path.read_text() == '{\n  "train_batch_size": 8,\n  "optimizer": {"type": "Adam"}\n}\n'
