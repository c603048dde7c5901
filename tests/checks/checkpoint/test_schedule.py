"""The learning rate schedule of a resumed run is checked before its start; complete runs: tests/train/checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from neoxargs.base.problems import Problem
from neoxargs.checks.checkpoint.model import loaded_checkpoint
from neoxargs.checks.checkpoint.schedule import other_epochs, other_schedule
from neoxargs.files.checkpoints import folder as checkpoint_folder
from neoxargs.resolve import File, complete, draft
from tests.support import smallest
from tests.support.configure import recorded, smallest_run

SAVED = {"lr": 6e-4, "warmup": 0.01, "train_iters": 10, "lr_decay_iters": 10}


def told(folder: Path, text: str = "", **saved: Any) -> list[Problem]:
    """Of the smallest run of 20 iterations that continues a checkpoint of iteration 10 with these values."""
    recorded(folder, SAVED | saved)
    longer = smallest.YAML.replace("train_iters: 10", "train_iters: 20")
    config = smallest_run(f"lr: 6.0e-4\nload: {folder}\n{text}", longer)
    return list(other_schedule(config, loaded_checkpoint(config)))


@pytest.mark.parametrize(
    ("batch", "epochs", "expected"),
    [
        (2, 2, ""),
        (1, 2, "read 10 samples: the run would read 30 samples instead of 40"),
        (4, 3, "read 40 samples: the run would read 80 samples instead of 60"),
        (4, 2, "read 40 samples: the run would read 60 samples instead of 40"),
        (2, 1, ""),  # all was read before
        (4, 1, ""),
    ],
)
def test_epochs_after_steps_with_another_batch_size(batch: int, epochs: int, expected: str, tmp_path: Path) -> None:
    recorded(tmp_path, {"train_batch_size": batch})
    yaml = f"{smallest.YAML.replace('train_iters: 10', f'train_epochs: {epochs}')}load: {tmp_path}\n"
    config = complete(draft([File("my.yml", yaml)]), 1, samples_per_epoch=20)
    found = list(other_epochs(config, loaded_checkpoint(config)))
    assert [expected in problem.what for problem in found] == [True] * bool(expected)
    steps = {(1, 2): 25, (4, 3): 20, (4, 2): 10}
    assert all(f"train_iters: {steps[batch, epochs]}," in problem.hint for problem in found)


def test_a_longer_run_warns_about_the_jump(tmp_path: Path) -> None:
    [problem] = told(tmp_path)
    assert (problem.severity, problem.id) == ("warning", "checkpoint-lr-jumps")
    assert problem.where and "train_iters: 20" in problem.where.text


def test_a_schedule_without_a_jump_has_no_warning(tmp_path: Path) -> None:
    assert not told(tmp_path, "lr_decay_style: constant\n", lr_decay_style="constant")


def test_a_checkpoint_that_cannot_be_resumed_has_no_schedule_to_continue(tmp_path: Path) -> None:
    """Adapters without their section, and a model for adapters, have an error of their own."""
    assert not told(tmp_path, "lora: {rank: 8}\n", lr=1e-3)
    (tmp_path / "global_step10" / checkpoint_folder.BASE).write_text(checkpoint_folder.Base(None, "").to_json())
    assert not told(tmp_path, lr=1e-3)
    assert told(tmp_path, "lora: {rank: 8}\n", lr=1e-3)


@pytest.mark.parametrize("text", ["", "no_load_optim: true\n"])
def test_another_peak_is_refused_at_its_line(text: str, tmp_path: Path) -> None:
    [problem] = told(tmp_path, text, lr=1e-3)
    assert (problem.severity, problem.id) == ("error", "checkpoint-other-lr-schedule")
    assert problem.about == ("load", "lr")
    assert problem.where and "lr: " in problem.where.text


@pytest.mark.parametrize(
    "text",
    [
        "finetune: true\n",
        "override_lr_scheduler: true\n",
        "use_checkpoint_lr_scheduler: true\n",
        "iteration: 7\n",
        "scheduler: {type: WarmupDecayLR}\n",
    ],
)
def test_runs_that_do_not_continue_the_schedule_are_not_checked(text: str, tmp_path: Path) -> None:
    assert not told(tmp_path, text, lr=1e-3)


@pytest.mark.parametrize("saved", ["", "[]", json.dumps({**SAVED, "lr": 1e-3, "use_checkpoint_lr_scheduler": True})])
def test_checkpoints_without_a_schedule_are_not_checked(saved: str, tmp_path: Path) -> None:
    told(tmp_path)
    (tmp_path / "global_step10" / "config.json").write_text(saved)
    config = smallest_run(f"load: {tmp_path}\n")
    assert not list(other_schedule(config, loaded_checkpoint(config)))


def test_a_new_optimizer_does_not_continue_the_schedule_of_an_imported_model(tmp_path: Path) -> None:
    told(tmp_path)
    (tmp_path / "global_step10").rename(tmp_path / "global_step0")
    for text, count in (("", 1), ("no_load_optim: true\n", 0)):
        config = smallest_run(f"lr: 1.0e-4\nload: {tmp_path}\n{text}")
        assert len(list(other_schedule(config, loaded_checkpoint(config)))) == count


WSD = "lr_decay_style: WSD\nlr_wsd_decay_iters: 3\n"


def test_wsd_is_made_longer_before_its_decay_without_a_word(tmp_path: Path) -> None:
    saved = {"lr_decay_style": "WSD", "lr_wsd_decay_iters": 3}
    assert told(tmp_path, WSD, train_iters=14, lr_decay_iters=14, **saved) == []
    [jump] = told(tmp_path, WSD, train_iters=12, lr_decay_iters=12, **saved)  # its decay had begun
    assert jump.id == "checkpoint-lr-jumps"
    [other] = told(tmp_path, WSD, train_iters=14, lr_decay_iters=14, **{**saved, "lr_wsd_decay_iters": 4})
    assert other.id == "checkpoint-other-lr-schedule"


def test_other_phases_are_another_schedule(tmp_path: Path) -> None:
    phases = [{"style": "constant", "until": 15}, {"style": "linear", "to": 0.0}]
    text = f"lr_schedule: {json.dumps(phases)}\n"
    sizes = {"train_batch_size": 2, "seq_length": 32, "train_iters": 20, "lr_decay_iters": 20}
    assert told(tmp_path, text, lr_schedule=phases, **sizes) == []
    for saved in (None, [*phases[:1], {"style": "cosine", "to": 0.0}]):
        [other] = told(tmp_path, text, lr_schedule=saved, **sizes)
        assert other.id == "checkpoint-other-lr-schedule" and "lr_schedule" in other.about


@pytest.mark.parametrize(
    ("unit", "now", "saved", "names"),
    [
        ("tokens", "seq_length: 32", {"seq_length": 16}, ["seq_length"]),
        ("samples", "seq_length: 32", {"seq_length": 16}, None),
        ("samples", "train_micro_batch_size_per_gpu: 2", {"train_batch_size": 4}, ["train_batch_size"]),
        ("tokens", "seq_length: 32", {"train_batch_size": 4, "train_iters": 30}, ["train_batch_size"]),
    ],
)
def test_what_moves_phases_is_named(
    unit: str, now: str, saved: dict[str, Any], names: list[str] | None, tmp_path: Path
) -> None:
    """The first phase ends in iteration 12, and did in another before."""
    phases = [{"style": "linear", "until": f"{24 * (32 if unit == 'tokens' else 1)} {unit}", "to": 0.0}]
    sizes = {"train_batch_size": 2, "seq_length": 32, "train_iters": 20, "lr_decay_iters": 20}
    found = told(tmp_path, f"lr_schedule: {json.dumps(phases)}\n", lr_schedule=phases, **{**sizes, **saved})
    assert [list(problem.about) for problem in found] == ([[*names, "lr_schedule", "load"]] if names else [])
