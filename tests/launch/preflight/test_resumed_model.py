"""A checkpoint of another model is an error before the ranks start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from neoxargs.launch.preflight.resumed_model import loaded_checkpoint, other_model, skipped_checkpoints
from neoxargs.problems import Problem
from neoxargs.resolve import Text, complete, draft
from neoxargs.resolve.config import Config
from tests.support import smallest


def told(folder: Path, text: str = "", **saved: Any) -> list[Problem]:
    """Of the smallest run, which loads a checkpoint of iteration 10 with these values."""
    checkpoint = folder / "global_step10"
    checkpoint.mkdir(exist_ok=True)
    (checkpoint / "config.json").write_text(json.dumps(saved))
    config = resolved(folder, text)
    return list(other_model(config, loaded_checkpoint(config)))


def resolved(folder: Path, text: str = "") -> Config:
    return complete(draft([Text("my.yml", f"{smallest.YAML}load: {folder}\n{text}")]), 1)


@pytest.mark.parametrize("text", ["", "finetune: true\n", "iteration: 10\n"])
def test_another_width_is_refused_at_its_line(tmp_path: Path, text: str) -> None:
    [problem] = told(tmp_path, text, hidden_size=8192)
    assert (problem.severity, problem.id) == ("error", "checkpoint-other-model")
    assert "8192 in the checkpoint" in problem.what and str(tmp_path / "global_step10") in problem.what
    assert problem.where and problem.where.text.startswith("hidden_size")


def test_shared_layers_of_another_number_are_refused(tmp_path: Path) -> None:
    assert [problem.about[0] for problem in told(tmp_path, param_sharing_style="spaced")] == ["param_sharing_style"]


def test_the_same_model_and_a_run_without_a_checkpoint_are_fine(tmp_path: Path) -> None:
    values = dict(line.split(": ") for line in smallest.YAML.splitlines() if line.startswith(("num_l", "hidden_size")))
    assert len(values) == 2
    assert told(tmp_path, **{name: int(value) for name, value in values.items()}) == []
    assert told(tmp_path, "iteration: 20\n", hidden_size=8192) == []


def skipped(folder: Path, text: str = "") -> list[Problem]:
    config = resolved(folder, text)
    return list(skipped_checkpoints(config, loaded_checkpoint(config)))


def test_checkpoints_that_are_skipped_are_warned_of(tmp_path: Path) -> None:
    for iteration in (10, 20):
        (tmp_path / f"global_step{iteration}").mkdir()
        (tmp_path / f"global_step{iteration}" / "config.json").write_text("{}")
    (tmp_path / "latest").write_text("global_step20")
    assert skipped(tmp_path) == []
    (tmp_path / "global_step20" / "config.json").unlink()
    [damaged] = skipped(tmp_path)
    assert "global_step20 is damaged: it is empty; the run continues from global_step10" in damaged.what
    (tmp_path / "latest").write_text("global_step99")
    [missing, _] = skipped(tmp_path)
    assert (
        missing.severity == "warning"
        and "the file `latest` points to global_step99, which does not exist" in missing.what
    )
    assert skipped(tmp_path, "iteration: 10\n") == []
