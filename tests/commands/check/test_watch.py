"""`deepy check --watch`: what makes it check again, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from neoxargs.cli import main
from neoxargs.commands.check import watch
from tests.support.bad_inputs import GOOD
from tests.support.paths import ROOT

Step = Callable[[], object]


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Return a function that watches, makes a step whenever it waits, and returns what it said each time."""
    monkeypatch.chdir(tmp_path)

    def run(words: Sequence[str], steps: Sequence[Step]) -> list[str]:
        left, said = list(steps), []

        def wait(seconds: float) -> None:
            out = capsys.readouterr()
            said.append(out.out + out.err)
            if not left:
                raise KeyboardInterrupt
            left.pop(0)()

        monkeypatch.setattr(watch.time, "sleep", wait)
        assert main(["check", *words, "--watch", "--output-format", "concise"]) == 0
        return said

    return run


def test_a_change_is_seen_also_if_the_file_was_gone(watched) -> None:
    path = Path("my.yml")
    path.write_text(GOOD)

    def replaced(key: str = "hidden_droput") -> None:
        Path("new").write_text(f"{GOOD}{key}: 0\n")
        os.utime("new", ns=(0, 0))
        os.replace("new", path)

    steps = [
        lambda: path.write_text(GOOD + "weight_decy: 0.1\n"), path.unlink, replaced,
        lambda: replaced("hidden_dropuot"),  # of the same size and time
        lambda: None, lambda: path.write_bytes(b"\0"),
    ]  # fmt: skip
    said = watched(["my", "--gpus", "8"], steps)
    assert [text != "" for text in said] == [True, True, True, True, True, False, True]
    wanted = ("", "weight_decy", "[file-missing]", "hidden_droput", "hidden_dropuot", "", "[file-not-text]")
    assert all(want in text for want, text in zip(wanted, said, strict=True))
    assert "error" not in said[0] and "weight_decy" not in said[3]


def test_a_line_is_between_two_reports(watched) -> None:
    Path("my.yml").write_text(GOOD)
    first, second = watched(["my", "--gpus", "8"], [lambda: Path("my.yml").write_text(GOOD + "weight_decy: 0.1\n")])
    assert watch.LINE not in first and second.startswith(f"\n{watch.LINE}\n")


def test_a_second_file_and_a_table_are_watched(watched) -> None:
    Path("a.yml").write_text(GOOD)
    Path("b.yml").write_text("seed: 1\n")
    said = watched(["a.yml", "b.yml", "--gpus", "8"], [lambda: Path("b.yml").write_text("sed: 1\n")])
    assert "[unknown-key]" in said[1]
    Path("deepy.toml").write_text('gpus = 8\n[runs]\nall = "*.yml"\n')
    Path("b.yml").unlink()
    steps: list[Step] = [
        lambda: Path("b.yml").write_text("num_layer: 1\n"),
        lambda: Path("deepy.toml").write_text('gpus = 8\n[runs]\na = "a.yml"\n'),
        lambda: Path("deepy.toml").write_text('gpus = 8\n[runs]\na = "c.yml"\n'),
        lambda: Path("deepy.toml").unlink(),
        lambda: Path("deepy.toml").write_text('gpus = 8\n[runs]\na = "a.yml"\n'),
    ]
    said = watched([], steps)
    wanted = (
        "watching 2 files",
        "num_layer ",
        "watching 2 files",
        "[runs-table-file]",
        "no repository",
        "watching 2 files",
    )
    assert all(want in text for want, text in zip(wanted, said, strict=True)), said


def test_the_screen_is_cleared_only_in_a_terminal(watched, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("my.yml").write_text(GOOD)
    assert watch.CLEAR not in watched(["my.yml", "--gpus", "8"], [])[0]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    first, second = watched(["my.yml", "--gpus", "8"], [lambda: Path("my.yml").touch()])
    assert first.startswith(watch.CLEAR) and second.startswith(watch.CLEAR) and watch.LINE not in second


def test_ctrl_c_ends_it_with_0_and_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "my.yml").write_text(GOOD)
    words = [sys.executable, str(ROOT / "deepy.py"), "check", "my.yml", "--gpus", "8", "--watch"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, cwd=tmp_path, stdout=pipe, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert any(line.startswith("watching 1 file;") for line in iter(process.stdout.readline, ""))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert process.returncode == 0 and "Traceback" not in out + err
