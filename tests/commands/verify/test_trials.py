"""One process runs the trials of all layouts, and another one what is left after a trial that fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from neoxargs.commands.verify import trials
from neoxargs.commands.verify.command import temporary_folder
from neoxargs.processes.process_tree import session_members, start_time
from neoxargs.targets.trial import Trial
from tests.support import trial_program


def test_one_process_runs_all_but_what_follows_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "TRIALS", trial_program.__name__)
    ended: list[str] = []
    with trials.Program() as program:

        def run(ranks: int, *names: str) -> dict[str, trials.Observed]:
            return program.run([Trial(name, []) for name in names], ranks, tmp_path / f"{ranks}.jsonl", ended.append)

        found = run(1, "alone") | run(2, "layout", "fails", "after it") | run(3, "last")
    assert ended == ["alone", "layout", "fails", "after it", "last"] == list(found)
    assert found.pop("fails") == {"refused": ["ValueError: it fails"]}
    assert {name: seen["ranks"] for name, seen in found.items()} == {"alone": 1, "layout": 2, "after it": 2, "last": 3}
    first, second, third, fourth = (seen["process"] for seen in found.values())
    assert first == second != third == fourth


def test_a_program_that_cannot_start_is_asked_in_vain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "TRIALS", f"{trial_program.__name__}.absent")
    with trials.Program() as program:
        found = program.run([Trial(str(number), []) for number in range(5)], 1, tmp_path / "trials.jsonl", print)
    assert [*found] == ["0", "1", "2", "3", "4"]
    assert all(set(seen) == {"refused"} for seen in found.values())


@pytest.mark.slow
def test_nothing_is_left_of_a_killed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    words = [sys.executable, "deepy.py", "verify", "-d", "configs", "models/gpt-2-small"]
    run = subprocess.Popen(words, start_new_session=True)
    while not (begun := [*tmp_path.glob("deepy-verify-*/alone.jsonl.observed")]):
        assert run.poll() is None
        time.sleep(0.1)
    members = {member.pid: start_time(member.pid) for member in session_members(run.pid)}
    assert len(members) > 2
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    while any(start_time(pid) == started for pid, started in members.items()):
        time.sleep(0.1)
    os.utime(begun[0].parent, (0, 0))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with temporary_folder() as ours:
        os.utime(ours, (0, 0))
        with temporary_folder() as another:
            assert {*tmp_path.glob("deepy-verify-*")} == {ours, another}
