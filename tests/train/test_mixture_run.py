"""A run whose mixture changes: what it reads is that of the plan, in whichever layout it goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.finetuning import token_file
from tests.support.processes import rank_arguments, step_rows, train_on_rank
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.timeout(300)
MIDDLE = 4
#: The shares move when the run is interrupted, after sample 32 of 64.
PHASES = [{"until": 2, "weights": [3, 1]}, {"style": "linear", "until": 6, "weights": [1, 3]}, {"weights": [1, 9]}]
RUN: dict[str, Any] = {
    "train_iters": 8, "train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "num_workers": 0, "eval_iters": 0,
    "data_path": None, "hidden_dropout": 0.0, "attention_dropout": 0.0, "split": None, "train_data_mixture": PHASES,
    "train_data_max_epochs": [None, 2],
}  # fmt: skip
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "one rank": (1, {}),
    "dp2, ZeRO-1": (2, {"zero_optimization": {"stage": 1}}),
    "dp2, ZeRO-3": (2, {"zero_optimization": {"stage": 3}}),
    "pp2": (2, {"pipe_parallel_size": 2}),
    "tp2": (2, {"model_parallel_size": 2}),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two token files of random documents, the second with fewer samples than the run reads of it."""
    folder, random = tmp_path_factory.mktemp("files"), np.random.default_rng(1)
    for name, documents in (("web", 100), ("code", 5)):
        token_file(folder / name, random.integers(97, 123, (documents, 64)).tolist())
    return folder


def losses(files: Path, folder: Path, layout: str, **changes: Any) -> list[float]:
    world, parallel = LAYOUTS[layout]
    named = [str(files / "web"), str(files / "code")]
    paths = {f"{split}_data_paths": named for split in ("train", "valid", "test")}
    arguments = rank_arguments(folder, world, **RUN | paths | parallel | changes)
    for code, _, errors in run_ranks(train_on_rank, world, arguments):
        assert code == 0, errors
    return [row["loss"] for row in step_rows(folder)]


@pytest.fixture(scope="module")
def whole(files: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    return losses(files, tmp_path_factory.mktemp("whole"), "one rank")


@pytest.mark.shows("train_data_mixture", "train_data_max_epochs")
def test_it_goes_on_while_the_shares_move(files: Path, whole: list[float], tmp_path: Path) -> None:
    saves = {"save": str(tmp_path / "ckpt"), "load": str(tmp_path / "ckpt"), "checkpoint_factor": MIDDLE}
    # Interrupted with another last phase, which changes nothing before.
    losses(
        files,
        tmp_path,
        "one rank",
        exit_interval=MIDDLE,
        train_data_mixture=[*PHASES[:2], {"weights": [9, 1]}],
        **saves,
    )
    assert losses(files, tmp_path, "one rank", **saves) == whole
    assert losses(files, tmp_path / "other", "one rank", train_data_mixture=[{"weights": [3, 1]}])[:2] == whole[:2]
    assert losses(files, tmp_path / "limit", "one rank", train_data_max_epochs=0.9) != whole


@pytest.mark.slow
@pytest.mark.parametrize("layout", list(LAYOUTS)[1:])
def test_it_goes_on_in_another_layout(files: Path, whole: list[float], tmp_path: Path, layout: str) -> None:
    saves = {"save": str(tmp_path / "ckpt"), "load": str(tmp_path / "ckpt"), "checkpoint_factor": MIDDLE}
    losses(files, tmp_path, layout, exit_interval=MIDDLE, **saves)
    # Sums of gradients in another order.
    assert losses(files, tmp_path, "one rank", **saves) == pytest.approx(whole, rel=1e-6)


@pytest.mark.slow
def test_preference_pairs_go_on_while_the_shares_move(files: Path, tmp_path: Path) -> None:
    """The reference model rates the answers that the mixture reads, and a resumed run has the same losses."""
    random = np.random.default_rng(2)
    for name in ("web", "code"):
        for answer in ("pos", "neg"):
            token_file(files / f"{name}_{answer}", random.integers(97, 123, (40, 20)).tolist())
    paths = {f"{answer}_train_data_paths": [str(files / f"{name}_{answer}") for name in ("web", "code")]
             for answer in ("pos", "neg")}  # fmt: skip
    none = {f"{split}_data_paths": None for split in ("train", "valid", "test")}
    pairs: dict[str, Any] = {
        "train_impl": "dpo", "dataset_impl": "pairwise", "pack_impl": "unpacked", **paths, **none,
        "train_data_max_epochs": None,
    }  # fmt: skip
    whole = losses(files, tmp_path / "whole", "one rank", **pairs)
    saves = {"save": str(tmp_path / "ckpt"), "load": str(tmp_path / "ckpt"), "checkpoint_factor": MIDDLE}
    losses(files, tmp_path, "one rank", exit_interval=MIDDLE, **pairs, **saves)
    assert len(whole) == 8 and losses(files, tmp_path, "one rank", **pairs, **saves) == whole
    assert (
        losses(files, tmp_path / "other", "one rank", **pairs | {"train_data_mixture": [{"weights": [1, 1]}]}) != whole
    )
