"""Named validation sets: the loss of each is that of a run whose validation data it is, and where it is reported."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neoxargs.files import metrics
from neoxargs.files.checkpoints.folder import checkpoints, iteration_of, written_by
from tests.support.finetuning import token_file
from tests.support.processes import rank_arguments, train_on_rank
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.timeout(300)
SETS = {"code": {"data_paths": ["code", "web"], "data_weights": [3, 1]}, "law": {"data_paths": "law", "weight": 3}}
RUN: dict[str, Any] = {
    "train_iters": 4, "eval_interval": 2, "eval_iters": 2, "num_workers": 0, "data_path": None, "log_dir": None,
    "hidden_dropout": 0.0, "attention_dropout": 0.0,
}  # fmt: skip
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "one rank": (1, {}),
    "dp2, ZeRO-3": (2, {"zero_optimization": {"stage": 3}}),
    "pp2": (2, {"pipe_parallel_size": 2}),
    "tp2": (2, {"model_parallel_size": 2}),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Token files of random documents, each of letters of its own."""
    folder, random = tmp_path_factory.mktemp("files"), np.random.default_rng(1)
    for number, name in enumerate(("train", "code", "web", "law")):
        token_file(folder / name, random.integers(97 + 3 * number, 107 + 3 * number, (100, 60)).tolist())
    return folder


def losses(files: Path, folder: Path, layout: str, **data: Any) -> dict[str, list[float | None]]:
    """Train, and return the losses of each split at iterations 2 and 4."""
    folder.mkdir(exist_ok=True)
    world, parallel = LAYOUTS[layout]

    def found(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: found(of) if key != "data_weights" else of for key, of in value.items()}
        if isinstance(value, list):
            return [found(of) for of in value]
        return str(files / value) if isinstance(value, str) else value

    named = {name: found(value) if name.startswith(("valid", "test")) else value for name, value in data.items()}
    values = {"train_data_paths": [str(files / "train")]} | named
    arguments = rank_arguments(folder, world, **RUN | parallel | values)
    for code, _, errors in run_ranks(train_on_rank, world, arguments):
        assert code == 0, errors
    rows = [row for row in metrics.read(folder / "out" / metrics.FILE) if row["event"] == "evaluation"]
    return {split: [row["loss"] for row in rows if row["split"] == split]
            for split in dict.fromkeys(row["split"] for row in rows)}  # fmt: skip


@pytest.fixture(scope="module")
def apart(files: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float | None]]:
    """Losses of runs with one set as their validation data."""
    root = tmp_path_factory.mktemp("apart")
    of_code = {"valid_data_paths": ["code", "web"], "valid_data_weights": [3, 1], "test_data_paths": ["web"]}
    of_law = {"valid_data_paths": ["law"], "test_data_paths": ["web"]}
    return {
        "validation/code": losses(files, root / "code", "one rank", **of_code)["validation"],
        "validation/law": losses(files, root / "law", "one rank", **of_law)["validation"],
    }


@pytest.mark.shows("validation")
def test_a_set_has_the_loss_that_it_has_as_the_only_validation_data(files: Path, apart: Any, tmp_path: Path) -> None:
    found = losses(files, tmp_path, "one rank", validation=SETS)
    assert found.pop("validation") == pytest.approx(
        [(code + 3 * law) / 4 for code, law in zip(*apart.values(), strict=True)], rel=1e-12
    )
    assert found == apart
    page = (tmp_path / "out" / "report.html").read_text()
    [chart] = re.findall(r'aria-label="Validation sets">.*?</svg>', page)
    assert ">code<" in chart and ">law<" in chart


@pytest.mark.shows("keep_best_checkpoints")
def test_the_checkpoints_with_the_lowest_validation_loss_are_kept(files: Path, tmp_path: Path) -> None:
    """With a learning rate at which the loss rises and falls; the run is stopped and resumed in between."""
    save, every = tmp_path / "saved", 2
    run = {"save": str(save), "load": str(save), "validation": SETS, "train_iters": 16, "checkpoint_factor": every,
           "eval_interval": every, "keep_last_n_checkpoints": 1, "keep_best_checkpoints": 2,
           "optimizer": {"type": "Adam", "params": {"lr": 0.3}}}  # fmt: skip
    losses(files, tmp_path, "one rank", **run, exit_interval=10)
    found = losses(files, tmp_path, "one rank", **run)["validation"]
    kept: set[int] = set()
    for number in range(1, len(found) + 1):
        best = sorted({*kept, number}, key=lambda each: found[each - 1] or 0)[:2]
        kept = {*best, number}
    assert kept != {*range(len(found) - len(kept) + 1, len(found) + 1)}  # not just the newest
    names = {checkpoint: written_by(checkpoint).validation_loss for checkpoint in checkpoints(save)}
    assert {iteration_of(checkpoint): loss for checkpoint, loss in names.items()} == {
        every * number: found[number - 1] for number in kept
    }


@pytest.mark.slow
@pytest.mark.parametrize("layout", list(LAYOUTS)[1:])
def test_on_any_layout(files: Path, apart: Any, tmp_path: Path, layout: str) -> None:
    found = losses(files, tmp_path, layout, validation=SETS)
    for name, values in apart.items():
        assert found[name] == pytest.approx(values, rel=1e-6)


@pytest.mark.slow
def test_a_run_that_is_resumed_goes_on_in_each_set(files: Path, apart: Any, tmp_path: Path) -> None:
    """With another layout, after an evaluation: the second one reads the samples that follow those of the first."""
    saving = {"save": str(tmp_path / "saved"), "load": str(tmp_path / "saved")}
    losses(files, tmp_path, "tp2", validation=SETS, exit_interval=2, **saving)
    found = losses(files, tmp_path, "pp2", validation=SETS, **saving)
    for name, values in apart.items():
        assert found[name] == pytest.approx(values, rel=1e-6)
