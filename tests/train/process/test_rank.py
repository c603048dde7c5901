"""Whole runs of `train.py` on two ranks: killed and continued, asked to stop, unable to start."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from threading import Thread

import pytest
import yaml

from tests.support.processes import (
    is_running,
    rank_arguments,
    readers,
    start_ranks,
    step_rows,
    train_on_rank,
    wait_for_end,
    wait_for_step,
)
from tests.support.ranks import run_ranks

STAGES = {"pipe_parallel_size": 2}


@pytest.mark.shows("save", "save-interval", "load")
@pytest.mark.timeout(400)
def test_a_killed_run_continues_bit_for_bit(tmp_path: Path) -> None:
    """And the checkpoint says what the run was; and finished work is not done again."""
    unbroken, killed = tmp_path / "unbroken", tmp_path / "killed"
    for folder in (unbroken, killed):
        folder.mkdir()
    saves = {"save": str(unbroken / "ckpt"), "keep_last_n_checkpoints": 2}
    (code, output, errors), _ = run_ranks(train_on_rank, 2, rank_arguments(unbroken, 2, **saves, **STAGES))
    assert code == 0, errors
    assert f"checkpoint  {unbroken}/ckpt/global_step12" in output
    assert sorted(path.name for path in (unbroken / "ckpt").iterdir()) == ["global_step12", "global_step8", "latest"]
    saved = unbroken / "ckpt" / "global_step12"
    assert json.loads((saved / "config.json").read_text()) == yaml.safe_load((saved / "config.yml").read_text())

    # Processes that read ahead change nothing.
    place = {"save": str(killed / "ckpt"), "load": str(killed / "ckpt"), "num_workers": 1}
    with start_ranks(killed, 2, pause_after=6, **place, **STAGES) as run:
        wait_for_step(killed, 6)
        workers = [worker for rank in run.processes for worker in readers(rank)]
        run.kill()
        codes, _, _ = run.wait()
    assert codes == [-signal.SIGKILL] * 2
    assert len(workers) == 2
    with start_ranks(killed, 2, **place, **STAGES) as run:
        codes, output, errors = run.wait()
    assert codes == [0, 0], errors
    assert "Traceback" not in errors
    assert "resuming after iteration" in output
    assert [(row["step"], row["loss"]) for row in step_rows(killed)] == [
        (row["step"], row["loss"]) for row in step_rows(unbroken)
    ]
    wait_for_end(workers)  # of their own accord, when their rank has been killed


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)])
@pytest.mark.timeout(200)
def test_a_signal_to_the_process_group_saves_too(tmp_path: Path, number: signal.Signals) -> None:
    """Slurm, torchrun and terminals signal the processes that read ahead as well."""
    changes = {"save": str(tmp_path / "ckpt"), "train_iters": 10_000, "checkpoint_factor": 10_000, "num_workers": 2}
    with start_ranks(tmp_path, 1, **changes) as run:
        wait_for_step(tmp_path, 3)
        workers = readers(run.processes[0])
        os.killpg(run.processes[0].pid or 0, number)
        codes, _, errors = run.wait()
    assert codes == [0], errors
    assert (tmp_path / "ckpt" / "latest").read_text() == f"global_step{step_rows(tmp_path)[-1]['step']}"
    assert len(workers) == 2
    assert not any(map(is_running, workers))


@pytest.mark.timeout(200)
def test_a_killed_loader_worker_ends_the_run(tmp_path: Path) -> None:
    """A system that runs out of memory may kill one; the rank must not wait for it forever."""
    changes = {"train_iters": 10_000, "num_workers": 2}
    with start_ranks(tmp_path, 1, **changes) as run:
        wait_for_step(tmp_path, 3)
        killed, other = readers(run.processes[0])
        os.kill(killed, signal.SIGKILL)
        codes, _, errors = run.wait()
    assert codes == [1]
    assert f"DataLoader worker (pid {killed}) is killed by signal: Killed" in errors
    wait_for_end([killed, other])


def interrupted(arguments: list[str], folder: Path) -> tuple[int, str, str]:
    """Told to end after the third step, as a launcher tells every rank."""

    def tell() -> None:
        wait_for_step(folder, 3)
        os.kill(os.getpid(), signal.SIGTERM)

    Thread(target=tell, daemon=True).start()
    return train_on_rank(arguments)


@pytest.mark.timeout(200)
def test_sigterm_saves_and_leaves_with_0(tmp_path: Path) -> None:
    changes = {"save": str(tmp_path / "ckpt"), "train_iters": 10_000, "checkpoint_factor": 10_000}
    ended = run_ranks(interrupted, 2, rank_arguments(tmp_path, 2, **changes), tmp_path)
    last = step_rows(tmp_path)[-1]["step"]
    assert [code for code, *_ in ended] == [0, 0], ended
    assert f"interrupted after iteration {last}\n" in ended[0][1]
    assert (tmp_path / "ckpt" / "latest").read_text() == f"global_step{last}"


@pytest.mark.timeout(200)
def test_nothing_to_load_is_one_sentence_from_one_rank(tmp_path: Path) -> None:
    ended = run_ranks(train_on_rank, 2, rank_arguments(tmp_path, 2, load=str(tmp_path / "nowhere")))
    errors = "".join(complaints for *_, complaints in ended)
    assert [code for code, *_ in ended] == [1, 1]
    assert errors.count("there is no checkpoint in this folder") == 1
    assert "Traceback" not in errors
