"""The README and the quick start: every command runs, and every link of the README has a target."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.readme import QUICK_START, README, commands

ROOT = README.parent
#: CI itself runs these lines, before and around this test.
RUN_BY_CI = ("-m venv", "-m pip", "/pip install", "-m pytest")


def deepy_commands() -> list[str]:
    return [line for line in commands(README, QUICK_START) if not any(part in line for part in RUN_BY_CI)]


def run(command: str, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the README with its results in `folder` and `more` appended."""
    words = [word.replace("runs/", f"{folder}/") for word in shlex.split(command)] + list(more)
    assert words[0] == ".venv/bin/python"
    return subprocess.run([sys.executable, *words[1:]], cwd=ROOT, capture_output=True, text=True, timeout=280)


#: A line that a library prints: a time stamp of a logger, the letter of a C++ log, a Python warning.
LIBRARY_LINE = re.compile(r"^\[?\d{4}-\d\d-\d\d|^(\[rank\d+\]:)?\[?[EWI]\d{4} |^\[Gloo\]|\w+Warning: ")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_command_runs(tmp_path: Path) -> None:
    # 10 steps are enough to see that training runs.
    short_run = ["--set", f"save={tmp_path}/quickstart", "--set", "train_iters=10", "--set", "tensorboard_dir=null"]
    short_run += ["--set", f"sample_output_file={tmp_path}/samples.txt"]
    for command in deepy_commands():
        launches = re.search(r"deepy\.py (train\.py|generate\.py|eval\.py|export|check configs/quickstart)", command)
        done = run(command, tmp_path, *(short_run if launches and "train_iters" not in command else []))
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        printed = [*done.stdout.splitlines(), *done.stderr.splitlines()]
        assert not list(filter(LIBRARY_LINE.search, printed)), command
    assert (tmp_path / "quickstart" / "loss.svg").stat().st_size > 1000
    assert "validation loss" in (tmp_path / "quickstart" / "report.html").read_text()
    assert "loss.svg" in (tmp_path / "quickstart" / "report.html").read_text()
    assert (tmp_path / "quickstart" / "latest").exists()


def test_every_link_has_a_target() -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", README.read_text(encoding="utf-8")):
        assert (ROOT / target).exists(), target
