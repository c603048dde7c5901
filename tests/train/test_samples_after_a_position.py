"""What a run reads after samples were left out, or with other batches than before: no sample again, none too many."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from neoxargs.cli import main
from neoxargs.files.checkpoints import folder as checkpoint_folder
from neoxargs.train.batches import loader
from neoxargs.train.engine.spikes import History, Spike
from tests.support.finetuning import token_file
from tests.support.processes import rank_arguments, step_rows, train_on_rank
from tests.support.ranks import run_ranks

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]
#: Samples of a batch, iterations, and those after which a checkpoint is saved.
BATCH, STEPS, EVERY = 4, 8, 2
RUN: dict[str, Any] = {
    "train_iters": STEPS, "train_micro_batch_size_per_gpu": 2, "train_batch_size": BATCH, "num_workers": 0,
    "eval_iters": 0, "split": None, "data_path": None, "seq_length": 16, "checkpoint_factor": EVERY,
    "spike_window": 4, "spike_skip_samples": 6,
}  # fmt: skip
MIXTURE = {"train_data_mixture": [{"until": "16 samples", "weights": [1, 1]}, {"weights": [3, 1]}]}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two token files of 64 documents, each one sample."""
    folder, random = tmp_path_factory.mktemp("files"), np.random.default_rng(1)
    for name in "ab":
        token_file(folder / name, random.integers(97, 123, (64, 17)).tolist())
    return folder


def train_with_spikes(arguments: list[str], at: tuple[int, ...]) -> tuple[int, str, list[bytes]]:
    """Train on one rank, with a spike in each of these steps, counted as they are computed.

    Return the exit code, the output, and the tokens of each sample that was read.
    """
    steps, judge, collate, samples = itertools.count(1), History.judge, loader.collate, list[bytes]()

    def planted(self: History, numbers: Any) -> Spike | None:
        judge(self, numbers)
        return Spike("loss", 9.0, 1.0, 99.0, "embedding") if next(steps) in at else None

    def recorded(found: list[Any]) -> Any:
        samples.extend(sample["tokens"].numpy().tobytes() for sample in found)
        return collate(found)

    with patch.object(History, "judge", planted), patch.object(loader, "collate", recorded):
        code, output, errors = train_on_rank(arguments)
    return code, output + errors, samples


def train(files: Path, folder: Path, *spikes: int, **changes: Any) -> tuple[str, list[bytes]]:
    """Run or continue a run, and return what it printed, and the samples that it read."""
    named = [str(files / "a"), str(files / "b")]
    paths = {f"{split}_data_paths": named for split in ("train", "valid", "test")}
    saves = {"save": str(folder / "ckpt"), "load": str(folder / "ckpt")}
    arguments = rank_arguments(folder, 1, **RUN | paths | saves | changes)
    [(code, output, samples)] = run_ranks(train_with_spikes, 1, arguments, spikes)
    assert code == 0, output
    return output, samples


def ledger(folder: Path, capsys: Any) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["data", "--ledger", str(folder / "out"), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def preview(folder: Path, capsys: Any) -> dict[str, Any]:
    capsys.readouterr()
    main(["preview", str(folder / "run.yml"), "--json", "--gpus", "1"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("data", [MIXTURE, {"train_data_weights": [3, 1]}, {"pack_impl": "unpacked"}], ids=str)
@pytest.mark.parametrize("policy", ["skip_samples", "rollback"])
def test_nothing_is_read_again_after_samples_were_left_out_nor_when_the_run_is_made_longer(
    files: Path, tmp_path: Path, capsys: Any, data: dict[str, Any], policy: str
) -> None:
    output, before = train(files, tmp_path, 5, on_spike=policy, **data)
    assert "starts over" not in output
    _, after = train(files, tmp_path, on_spike=policy, train_iters=STEPS + 4, **data)
    assert len(before) == BATCH * (STEPS + (policy == "rollback")) and len(after) == BATCH * 4
    assert len({*before, *after}) == len(before) + len(after)
    found, rows = ledger(tmp_path, capsys), step_rows(tmp_path)
    assert len(rows) == STEPS + 4 and found["samples"] == BATCH * (STEPS + 4)
    assert all({*each["times"]} <= {"1"} for each in found["datasets"].values())
    # The position that the checkpoint records, and with it what preview says of a run that goes on.
    [*_, last] = checkpoint_folder.checkpoints(tmp_path / "ckpt")
    position = checkpoint_folder.position_of(last, lambda name: None)
    left_out = 6 if policy == "skip_samples" else 6 + BATCH  # the checkpoint is of the step before
    assert (position.samples, position.left_out) == (found["samples"], left_out)


def test_a_run_whose_mixture_is_used_up_by_what_was_left_out_ends_early(
    files: Path, tmp_path: Path, capsys: Any
) -> None:
    options = {"train_data_mixture": [{"weights": [1, 1]}], "train_data_max_epochs": 0.28, "on_spike": "skip_samples"}
    output, samples = train(files, tmp_path, 5, **options)  # type: ignore[arg-type]
    assert "used up" in output and "stopped after iteration 7" in output
    [*_, last] = checkpoint_folder.checkpoints(tmp_path / "ckpt")
    assert checkpoint_folder.iteration_of(last) == 7
    assert len({*samples}) == len(samples) == 7 * BATCH
    # It neither fails nor goes on when it is started again, and check says so before.
    again, more = train(files, tmp_path, **options)  # type: ignore[arg-type]
    assert "stopped after iteration 7" in again and not more
    capsys.readouterr()
    assert main(["check", str(tmp_path / "run.yml"), "--json", "--gpus", "1"]) == 0
    told = json.loads(capsys.readouterr().out)["problems"]
    assert [each["id"] for each in told].count("mixture-ends-early") == 1


def test_with_another_schedule_of_batches_it_reads_what_preview_says(files: Path, tmp_path: Path, capsys: Any) -> None:
    _, before = train(files, tmp_path, train_iters=6, exit_interval=4, **MIXTURE)
    later = {"train_batch_size": 8, "batch_size_schedule": [{"until": 5, "size": 2}, {"size": 8}]}
    named = [str(files / "a"), str(files / "b")]
    paths = {f"{split}_data_paths": named for split in ("train", "valid", "test")}
    saves = {"save": str(tmp_path / "ckpt"), "load": str(tmp_path / "ckpt")}
    rank_arguments(tmp_path, 1, **RUN | paths | saves | MIXTURE | later)
    told = preview(tmp_path, capsys)
    _, after = train(files, tmp_path, **MIXTURE, **later)
    assert told["tokens"] == 16 * len(after) == sum(each["tokens_left"] for each in told["data"])
    assert len({*before, *after}) == len(before) + len(after)
