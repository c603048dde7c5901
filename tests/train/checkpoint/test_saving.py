"""Checkpoints that are written in the background: equal to those written at once, and all ranks learn of a failure."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from neoxargs.base.problems import Problems
from neoxargs.facts.position import Position
from neoxargs.files.checkpoints import folder as checkpoint_folder
from neoxargs.files.checkpoints.checksums import ChecksumFile
from neoxargs.train.checkpoint import commit, rank_files
from neoxargs.train.checkpoint.snapshot import Snapshot
from neoxargs.train.process import mesh, setup
from tests.support.layouts import BF16, PIPE, TENSOR, TWO_STAGES
from tests.support.processes import start_ranks, step_rows, wait_for_step
from tests.support.ranks import run_ranks
from tests.support.small_gpt import VOCABULARY
from tests.support.trials import SAMPLES, Training, Trial, staged

LAYOUTS = {
    "dp2, ZeRO-0": Trial(),
    "dp2, ZeRO-2, bf16": staged(2, **BF16),
    "dp2, ZeRO-3": staged(3),
    "pp2": Trial(TWO_STAGES),
    "tp2, pipeline, ZeRO-1": staged(1, PIPE | TENSOR),
}  # fmt: skip


class Gated(ChecksumFile):
    """A file that is only opened when `gate` is set."""

    gate = threading.Event()

    def __init__(self, path: Path | str) -> None:
        assert self.gate.wait(60)
        super().__init__(path)


class Full(ChecksumFile):
    """A file on a full disk."""

    def __init__(self, path: Path | str, *_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))


def layouts(root: str) -> dict[str, Any]:
    """Return for each layout the losses after a save, of the run and of one that continues it; and what was found."""
    process, found = setup.start("gloo", seed=1), {}
    for name, trial in LAYOUTS.items():
        folder = Path(root, name)
        first = Training(trial, save=str(folder), save_in_background=True)
        saver = first.checkpoints(process)
        for iteration in (1, 2, 3):
            first.step()
            if iteration == 1:  # so that the next save uses the buffers again
                saver.save(Position(1, SAMPLES))
        assert saver.files
        saver.files.finish()
        Gated.gate.clear()
        with patch.object(rank_files, "ChecksumFile", Gated):
            completed = saver.save(Position(3, 3 * SAMPLES))
            losses = [first.step() for _ in range(2)]
            during = saver.writing, checkpoint_folder.latest(folder)
            Gated.gate.set()
            saved = saver.finish()
        mesh.destroy_groups()
        second = Training(trial, load=str(folder))
        position = second.load(process)
        found[name] = {
            "continued": (losses, [second.step() for _ in range(2)]), "during": during,
            "completed": completed and completed.position.iteration, "saved": saved and saved.folder.name,
            "iteration": position.iteration, "after": (saver.pending, saver.writing, saver.finish()),
        }  # fmt: skip
        mesh.destroy_groups()
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    root = tmp_path_factory.mktemp("background")
    return run_ranks(layouts, 2, str(root), timeout=250)[0], root


pytestmark = pytest.mark.timeout(400)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_checkpoint_has_the_state_at_the_save_although_training_went_on(found, name):
    losses, continued = found[0][name]["continued"]
    assert continued == losses
    assert found[0][name]["iteration"] == 3
    assert checkpoint_folder.verify(found[1] / name / "global_step3") == ""
    # What a launch compares with the vocabulary of the run: the rows of all tensor parallel ranks together.
    assert checkpoint_folder.embedding_rows(found[1] / name / "global_step3") == VOCABULARY.padded


@pytest.mark.parametrize("name", LAYOUTS)
def test_it_is_visible_only_once_it_is_finished(found, name):
    result = found[0][name]
    assert result["during"] == (True, "global_step1")
    assert result["completed"] == 1  # the save completes the one before first
    assert result["saved"] == "global_step3"
    assert result["after"] == (None, False, None)


def failures(root: str) -> list[str]:
    """A disk that is full on rank 1 only: at once and in the background; return the messages on this rank."""
    process, messages = setup.start("gloo", seed=1), []
    for background in (False, True):
        training = Training(Trial(), save=str(Path(root, str(background))), save_in_background=background)
        saver = training.checkpoints(process)
        saver.save(Position(1, SAMPLES))
        saver.finish()
        for place, target, replacement in (
            ("write", (rank_files, "ChecksumFile"), Full if process.rank else ChecksumFile),
            ("begin", (commit, "begin"), Full),
        ):
            with patch.object(*target, replacement):
                try:
                    saver.save(Position(2, 2 * SAMPLES))
                    training.step()
                    saver.finish()
                except Problems as problems:
                    messages.append(f"{place}: {problems}")
                torch.distributed.barrier()  # neither before the other rank has given up, nor after it begins again
                assert not list(Path(root, str(background)).glob(".writing-*"))
                torch.distributed.barrier()
        saver.save(Position(3, 3 * SAMPLES))
        saver.finish()
        messages.append(saver.last.name if saver.last else "")
        mesh.destroy_groups()
    return messages


def test_every_rank_reports_a_rank_that_cannot_write_and_goes_on(tmp_path):
    first, second = run_ranks(failures, 2, str(tmp_path), timeout=150)
    assert first == second
    assert [message.partition(":")[0] for message in first] == ["write", "begin", "global_step3"] * 2
    for background in (False, True):
        root = tmp_path / str(background)
        write, begin, _ = first[3 * background :][:3]
        assert f"save ({root}): the checkpoint at iteration 2 cannot be written: rank 1 on " in write
        assert "no space left on device; the latest checkpoint is " in write
        assert "global_step1 [checkpoint-not-saved]" in write
        assert "rank 0 on " in begin
        assert [path.name for path in checkpoint_folder.checkpoints(root)] == ["global_step1", "global_step3"]
        assert not list(root.glob(".writing-*"))


def test_copies_are_independent_and_keep_what_is_shared():
    flat = torch.arange(12.0)
    state = OrderedDict(a=flat[:4], tied=flat[:4], rest=[flat[4:].view(2, 4), (torch.tensor(3), 0.5)], empty=flat[:0])
    state._metadata = {"version": 1}  # type: ignore[attr-defined]
    copies = Snapshot()
    copied = copies.of({"state": state, "weight": torch.nn.Parameter(torch.ones(3))})
    flat.zero_()
    assert copied["state"]["a"].tolist() == [0, 1, 2, 3]
    assert copied["state"]["tied"] is copied["state"]["a"]
    assert copied["state"]["a"].untyped_storage().nbytes() == 16  # its own elements only
    assert copied["state"]["rest"][0].tolist() == [[4, 5, 6, 7], [8, 9, 10, 11]]
    assert copied["state"]["rest"][1] == (torch.tensor(3), 0.5)
    assert copied["state"]._metadata == {"version": 1}
    assert isinstance(copied["weight"], torch.nn.Parameter)
    before = [buffer.data_ptr() for buffer in copies.buffers]
    copies.start()
    copies.of({"state": state, "weight": torch.nn.Parameter(torch.ones(3))})
    assert [buffer.data_ptr() for buffer in copies.buffers] == before


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.1, 0.3])
def test_killed_at_any_moment_the_last_checkpoint_is_whole_and_sigterm_waits_for_the_one_being_written(tmp_path, delay):
    save = tmp_path / "out"
    changes = {"save": str(save), "load": str(save), "save_in_background": True, "checkpoint_factor": 1,
               "train_iters": 100_000, "model_parallel_size": 2}  # fmt: skip
    with start_ranks(tmp_path, 2, **changes) as ranks:
        wait_for_step(tmp_path, 5)
        time.sleep(delay)
        ranks.kill()
        ranks.wait()
    left, newest = checkpoint_folder.checkpoints(save), checkpoint_folder.newest(save)
    assert newest and not any(map(checkpoint_folder.verify, left))
    done = max(row["step"] for row in step_rows(tmp_path))
    with start_ranks(tmp_path, 2, **changes) as ranks:
        wait_for_step(tmp_path, done + 2)
        ranks.kill(signal.SIGTERM)
        codes, output, _ = ranks.wait()
    last = checkpoint_folder.newest(save)
    assert codes == [0, 0] and last and last not in left
    assert f"saved iteration {checkpoint_folder.iteration_of(last)} to {last}" in output
    assert checkpoint_folder.verify(last) == "" and not list(save.glob(".writing-*"))


def on_two_hosts(root: str, shared: bool) -> dict[str, Any]:
    """Save twice on two ranks, as if each were on a host of its own; return what is then in the rank's folder."""
    process = replace(setup.start("gloo", seed=1), local_rank=0)
    host = Path(root, "shared" if shared else f"host{process.rank}")
    host.mkdir(exist_ok=True)
    trial = staged(1, checkpoint={"use_node_local_storage": True})
    environment = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    with patch("socket.gethostname", lambda: f"host{process.rank}"), patch.dict("os.environ", environment):
        os.chdir(host)
        first = Training(trial, save="out", keep_last_n_checkpoints=1)
        saver = first.checkpoints(process)
        for iteration in (1, 2):
            first.step()
            saver.save(Position(iteration, iteration * SAMPLES))
        saver.close()
        losses = [first.step() for _ in range(2)]
        mesh.destroy_groups()
        second = Training(trial, load="out")
        second.load(process)
        resumed = [second.step() for _ in range(2)]
        mesh.destroy_groups()
    saved = Path("out", "global_step2")
    return {
        "checkpoints": [path.name for path in checkpoint_folder.checkpoints(Path("out"))],
        "hidden": [path.name for path in Path("out").glob(".*")],
        "files": [path.name for path in saved.iterdir()],
        "damage": checkpoint_folder.verify(saved),
        "same": losses == resumed,
    }


def test_every_host_with_a_disk_of_its_own_has_a_complete_folder(tmp_path: Path) -> None:
    found = run_ranks(on_two_hosts, 2, str(tmp_path), False)
    partitions = {f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in (0, 1)}
    for rank, each in enumerate(found):
        assert each["checkpoints"] == ["global_step2"] and each["hidden"] == []
        assert partitions & {*each["files"]} == {f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"}
        assert {"config.json", "files.json", "mp_rank_00_model_states.pt"} <= {*each["files"]}
        assert each["damage"] == "" and each["same"]


def test_hosts_that_share_the_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="rank 0's host shares it with host1"):
        run_ranks(on_two_hosts, 2, str(tmp_path), True)
