"""A run whose batch grows: the samples that it reads, where it continues, and what it writes about each step."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch.distributed

from neoxargs.facts.batch_sizes import BatchSizes
from neoxargs.facts.lr_schedule import LearningRateCurve
from neoxargs.files import metrics
from neoxargs.train.batches import loader
from tests.support.processes import rank_arguments, step_rows, train_on_rank
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.timeout(300)
ITERATIONS, MIDDLE = 9, 4
RAMP: dict[str, Any] = {
    "train_batch_size": 16, "train_micro_batch_size_per_gpu": 2, "rampup_batch_size": [4, 4, 40],
    "train_iters": None, "train_samples": 80, "eval_interval": 3, "eval_iters": 2, "num_workers": 0,
    "lr_decay_style": "cosine", "warmup": 0.3, "checkpoint_factor": MIDDLE,
    "hidden_dropout": 0.0, "attention_dropout": 0.0,
}  # fmt: skip
SIZES = BatchSizes.of(RAMP.get)
assert SIZES.iterations_in(RAMP["train_samples"]) == ITERATIONS
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "one rank": (1, {}),
    "pipeline": (1, {"pipe_parallel_size": 1}),
    "dp2, ZeRO-2": (2, {"zero_optimization": {"stage": 2}}),
    "dp2, ZeRO-3": (2, {"zero_optimization": {"stage": 3}}),
    "pp2": (2, {"pipe_parallel_size": 2}),
    "tp2": (2, {"model_parallel_size": 2, "sequence_parallel": True}),
}


def recording(arguments: list[str], folder: str) -> tuple[int, str, str]:
    """Train on this rank, and write the number of each training sample that it reads."""
    read: list[int] = []
    indices, train = loader.sample_indices, loader.Loader.train

    def recorded(*position: Any) -> Iterator[list[int]]:
        for chosen in indices(*position):
            read.extend(chosen)
            yield chosen

    def of_training(self: loader.Loader, consumed: int) -> Any:
        with patch.object(loader, "sample_indices", recorded):
            return train(self, consumed)

    with patch.object(loader.Loader, "train", of_training):
        ended = train_on_rank(arguments)
    Path(folder, f"read{torch.distributed.get_rank()}.json").write_text(json.dumps(read))
    return ended


def run(folder: Path, layout: str, **changes: Any) -> list[int]:
    """Run on a layout and return the numbers of the training samples that its replicas read, sorted."""
    world, parallel = LAYOUTS[layout]
    arguments = rank_arguments(folder, world, **RAMP | parallel | changes)
    for code, _, errors in run_ranks(recording, world, arguments, str(folder)):
        assert code == 0, errors
    return sorted(number for rank in range(world) for number in json.loads((folder / f"read{rank}.json").read_text()))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    folder = tmp_path_factory.mktemp("whole")
    return folder, run(folder, "one rank")


def test_every_sample_is_read_once_and_every_step_has_its_batch(whole: tuple[Path, list[int]]) -> None:
    folder, read = whole
    rows = step_rows(folder)
    assert [row["batch"] for row in rows] == [SIZES.of_iteration(each) for each in range(ITERATIONS)]
    assert {4, 8, 12, 16} == {row["batch"] for row in rows}
    assert [row["samples"] for row in rows] == [SIZES.samples_after(each + 1) for each in range(ITERATIONS)]
    assert read == [*range(SIZES.samples_after(ITERATIONS))]
    # Of the samples read before, as in Megatron-LM; the first step has the rate of the second (`warmup_from_zero`).
    before = [max(row["samples"] - row["batch"], 4) for row in rows]
    curve = LearningRateCurve("cosine", 1e-3, 0.0, 0.3 * 80, 80)
    assert [row["lr"] for row in rows] == pytest.approx([curve.rate(samples) for samples in before])
    page = (folder / "out" / "report.html").read_text()
    assert "Batch size" in page


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("one rank", "one rank"),
        pytest.param("pipeline", "pipeline", marks=pytest.mark.slow),
        pytest.param("one rank", "dp2, ZeRO-2", marks=pytest.mark.slow),
        pytest.param("dp2, ZeRO-3", "one rank", marks=pytest.mark.slow),
    ],
)
def test_it_continues_in_the_middle_of_the_ramp(
    tmp_path: Path, whole: tuple[Path, list[int]], first: str, then: str
) -> None:
    assert SIZES.of_iteration(MIDDLE - 1) < SIZES.of_iteration(MIDDLE) < SIZES.last
    saves = {"save": str(tmp_path / "ckpt"), "load": str(tmp_path / "ckpt")}
    before = run(tmp_path, first, exit_interval=MIDDLE, **saves)
    after = run(tmp_path, then, **saves)
    assert before == [*range(SIZES.samples_after(MIDDLE))]
    assert before + after == whole[1]
    rows, expected = step_rows(tmp_path), step_rows(whole[0])
    assert [(row["batch"], row["samples"]) for row in rows] == [(row["batch"], row["samples"]) for row in expected]
    losses = [row["loss"] for row in rows], [row["loss"] for row in expected]
    if (first, then) == ("one rank", "one rank"):
        assert losses[0] == losses[1]
        evaluated = [[row for row in metrics.read(each / "out" / metrics.FILE) if row["event"] == "evaluation"]
                     for each in (tmp_path, whole[0])]  # fmt: skip
        assert evaluated[0] == evaluated[1]
    else:  # sums of gradients in another order
        assert losses[0] == pytest.approx(losses[1], rel=1e-6)


#: The sizes of RAMP, with ends in samples, iterations and tokens.
PHASES: dict[str, Any] = {
    "rampup_batch_size": None,
    "batch_size_schedule": [
        {"until": f"{SIZES.begins[1][0]} samples", "size": 4},
        {"until": SIZES.stages[2].iteration, "size": 8},
        {"until": f"{SIZES.begins[3][0] * 32} tokens", "size": 12},
        {"size": 16},
    ],
}


@pytest.mark.shows("batch_size_schedule")
@pytest.mark.parametrize(
    ("first", "then"),
    [
        pytest.param("one rank", "one rank", marks=pytest.mark.slow),
        pytest.param("one rank", "dp2, ZeRO-2", marks=pytest.mark.slow),
        pytest.param("dp2, ZeRO-3", "pipeline", marks=pytest.mark.slow),
    ],
)
def test_phases_of_the_same_sizes_are_the_same_run(
    tmp_path: Path, whole: tuple[Path, list[int]], first: str, then: str
) -> None:
    saves = {"save": str(tmp_path / "ckpt"), "load": str(tmp_path / "ckpt"), **PHASES}
    read = run(tmp_path, first, exit_interval=MIDDLE, **saves) + run(tmp_path, then, **saves)
    assert read == whole[1]
    rows, expected = step_rows(tmp_path), step_rows(whole[0])
    near = 0.0 if first == then else 1e-6
    for name in ("batch", "samples", "lr"):
        assert [row[name] for row in rows] == [row[name] for row in expected], name
    assert [row["loss"] for row in rows] == pytest.approx([row["loss"] for row in expected], rel=near, abs=0)


#: Lengths of sequences; the second phase begins before MIDDLE, and ends after it.
LENGTHS: dict[str, Any] = {
    "seq_length_schedule": [{"until": 3, "length": 8}, {"until": "40 samples", "length": 16}, {"length": 32}]
}


@pytest.fixture(scope="module")
def lengthened(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    folder = tmp_path_factory.mktemp("lengths")
    return folder, run(folder, "one rank", **LENGTHS)


@pytest.mark.slow
@pytest.mark.shows("seq_length_schedule")
@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("one rank", "one rank"), ("one rank", "dp2, ZeRO-2"), ("dp2, ZeRO-3", "pp2"), ("pp2", "tp2"),
        ("tp2", "pipeline"),
    ],
)  # fmt: skip
def test_sequences_grow_on_every_layout_and_where_a_run_continues(
    tmp_path: Path, whole: tuple[Path, list[int]], lengthened: tuple[Path, list[int]], first: str, then: str
) -> None:
    saves = {"save": str(tmp_path / "ckpt"), "load": str(tmp_path / "ckpt"), **LENGTHS}
    read = {*run(tmp_path, first, exit_interval=MIDDLE, **saves), *run(tmp_path, then, **saves)}
    assert sorted(read) == lengthened[1] == whole[1]
    rows, expected, without = (step_rows(folder) for folder in (tmp_path, lengthened[0], whole[0]))
    near = 0.0 if first == then else 1e-6
    assert [row["seq_length"] for row in rows] == [8] * 3 + [16] * 4 + [32] * 2
    for name in ("batch", "samples", "lr"):
        assert [row[name] for row in rows] == [row[name] for row in expected] == [row[name] for row in without], name
    assert [row["loss"] for row in rows] == pytest.approx([row["loss"] for row in expected], rel=near, abs=0)
    assert [row["loss"] for row in without] != pytest.approx([row["loss"] for row in expected], abs=1e-4, rel=0)
