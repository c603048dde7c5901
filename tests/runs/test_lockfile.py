"""run.lock.yml: what a launch writes, and reading it back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from neoxargs.cli import main
from neoxargs.files.run_record import recorded_values
from neoxargs.runs.lockfile import lock_text, read_lock, replaced_record, write_lock
from tests.support import smallest
from tests.support.configure import configure
from tests.support.refused import ids, refused


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_what_is_read_is_what_was_written() -> None:
    config = configure("lr: 1e-5\nrun_dir: out\ncomment: 'a: b # c'\ndata_path: [0.5, a, 0.5, b]")
    lock = read_lock(write_lock(config, "train.py"))
    values = {name: entry["value"] for name, entry in lock.values.items()}
    assert lock.script == "train.py"
    assert lock.values["lr"] == {"value": 1e-5, "source": "my.yml:1:1"}
    assert (values["comment"], values["data_path"], values["exit_interval"]) == ("a: b # c", [0.5, "a", 0.5, "b"], None)
    recorded = recorded_values(config)
    assert values == {name: recorded[name]["value"] for name in values}
    assert "mask_prob" not in values
    assert lock.places["values", "lr"].line > lock.places["packages", "python"].line


@pytest.mark.parametrize("character", ["\U0001f600", "\x7f", "\x85", "\u2028", "\ufeff", "\\", '"', "\t"])
def test_every_character_of_a_value_is_read_as_it_was(character: str) -> None:
    config = configure(f"comment: {json.dumps(character, ensure_ascii=len(character.encode()) < 4)}\nrun_dir: out")
    assert config.get("comment") == character
    assert read_lock(write_lock(config, "train.py")).values["comment"]["value"] == character


def test_secrets_are_left_out() -> None:
    text = lock_text(configure("comet: {enabled: true, api_key: hush}"), "train.py", {})
    assert "comet.enabled" in text
    assert "hush" not in text
    assert "api_key" not in text


def test_a_launch_writes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tokenise", "compile_ops"):
        monkeypatch.setattr(f"neoxargs.launch.start.prepare.{name}", lambda *_: 0)
    monkeypatch.setattr("neoxargs.launch.start.restarts.start_ranks", lambda *_: 0)
    Path("my.yml").write_text(smallest.YAML + "run_dir: out\n")
    Path("script.py").touch()
    assert main(["script.py", "my.yml"]) == 0
    lock = read_lock("out/run.lock.yml")
    assert lock.script == "script.py"
    assert lock.values["run_dir"] == {"value": "out", "source": "my.yml:8:1"}
    assert lock.sections["code"]["script"]


def test_a_warning_before_the_record_of_another_script_is_replaced() -> None:
    config = configure("run_dir: out")
    assert replaced_record(config, "train.py") == []
    write_lock(config, "/somewhere/train.py")
    assert replaced_record(config, "train.py") == []
    (problem,) = replaced_record(config, "mine.py")
    assert problem.severity == "warning"
    assert problem.what.startswith(
        "run_dir (out) has the run.lock.yml and config.json of a launch of train.py; mine.py"
    )


@pytest.mark.parametrize("text", ["num_layers: 2\n", "format: 2\n", "format: 1\nvalues:\n  lr: 3\n"])
def test_another_file_of_this_name(text: str) -> None:
    Path("run.lock.yml").write_text(text)
    assert ids(refused(read_lock, "run.lock.yml")) == ["lock-unreadable"]
