"""Adapters without their model, or for another one, are errors before the ranks start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from neoxargs.base.problems import Problem
from neoxargs.checks.all import fit_of_checkpoint
from neoxargs.checks.checkpoint.frozen_model import frozen_model_problems
from neoxargs.checks.checkpoint.model import loaded_checkpoint
from neoxargs.commands.checkpoints import examine
from neoxargs.files.checkpoints import folder as checkpoint_folder
from neoxargs.files.checkpoints.folder import Base
from tests.support.configure import recorded, smallest_run
from tests.support.snapshots import pinned

LORA = "lora: {rank: 8, alpha: 4, targets: [dense]}\n"
SAVED = {"lora": {"rank": 8, "alpha": 4.0, "targets": ["dense"]}}


def checkpoint(root: Path, base: Path | None = None, **values: Any) -> Path:
    """Make a checkpoint of iteration 10 of a run with these values. base: the model, if it contains adapters for it."""
    folder = recorded(root, {"num_layers": 2, "hidden_size": 64, **values})
    (folder / "files.json").write_text(json.dumps({"config.json": (folder / "config.json").stat().st_size}))
    if base is not None:
        (folder / checkpoint_folder.BASE).write_text(Base.of(base / "global_step10").to_json())
    return folder


def found(text: str, training: bool = True) -> list[tuple[str, str]]:
    """Return the ids and sentences of the problems of the smallest run with this text."""
    return [(problem.id, problem.what) for problem in problems(text, training)]


def problems(text: str, training: bool = True) -> list[Problem]:
    config = smallest_run(text)
    return list(frozen_model_problems(config, loaded_checkpoint(config), training))


def test_a_run_finds_the_model_that_its_checkpoint_records(tmp_path: Path) -> None:
    model, adapters = tmp_path / "model", tmp_path / "adapters"
    checkpoint(model)
    assert found(f"{LORA}base_checkpoint: {model}\n") == []
    assert found(f"{LORA}base_checkpoint: {model / 'global_step10'}\n") == []
    assert found(f"{LORA}load: {model}\nfinetune: true\n") == []
    folder = checkpoint(adapters, model, **SAVED)
    assert found(f"{LORA}load: {adapters}\n") == []
    assert examine(folder, lambda _: "").state.endswith(f"adapters of rank 8 for {model / 'global_step10'}")
    model.rename(tmp_path / "moved")
    [(id, what)] = found(f"{LORA}load: {adapters}\n")
    assert id == "base-checkpoint-missing" and str(model) in what
    assert found(f"{LORA}load: {adapters}\nbase_checkpoint: {tmp_path / 'moved'}\n") == []
    [(id, _)] = found(f"{LORA}base_checkpoint: {tmp_path / 'nowhere'}\n")
    assert id == "base-checkpoint-missing"


def test_another_model_is_refused(tmp_path: Path) -> None:
    model, other, adapters = tmp_path / "model", tmp_path / "other", tmp_path / "adapters"
    checkpoint(model)
    checkpoint(other, seed=3)
    checkpoint(adapters, model, **SAVED)
    [(id, what)] = found(f"{LORA}load: {adapters}\nbase_checkpoint: {other}\n")
    assert id == "base-checkpoint-differs" and str(model) in what and str(other) in what
    assert found(f"{LORA}load: {adapters}\nbase_checkpoint: {other}\nfinetune: true\n") == []
    checkpoint(other, hidden_size=128)
    assert found(f"{LORA}base_checkpoint: {other}\n")[0][0] == "checkpoint-other-model"


def test_a_model_that_was_replaced_in_its_folder_is_said_to_have_changed(tmp_path: Path) -> None:
    model, adapters = tmp_path / "model", tmp_path / "adapters"
    checkpoint(model)
    checkpoint(adapters, model, **SAVED)
    checkpoint(model, seed=3)
    pinned(problems(f"{LORA}load: {adapters}\n"))
    assert found(f"{LORA}load: {adapters}\nfinetune: true\nbase_checkpoint: {model}\n") == []


def test_a_change_since_both_checkpoints_is_reported_once(tmp_path: Path) -> None:
    model, adapters = tmp_path / "model", tmp_path / "adapters"
    checkpoint(model, hidden_size=128, tokenizer_type="CharLevelTokenizer")
    checkpoint(adapters, model, **SAVED, hidden_size=128, tokenizer_type="CharLevelTokenizer")
    config = smallest_run(f"{LORA}load: {adapters}\n")
    assert [problem.about[0] for problem in fit_of_checkpoint(config)] == ["hidden_size", "tokenizer_type"]
    checkpoint(adapters, model, **SAVED, tokenizer_type=config.tokenizer.tokenizer_type)
    assert [problem.about[0] for problem in fit_of_checkpoint(config)] == ["hidden_size", "tokenizer_type"]


def test_other_adapters_are_refused(tmp_path: Path) -> None:
    model, adapters = tmp_path / "model", tmp_path / "adapters"
    checkpoint(model)
    checkpoint(adapters, model, **SAVED)
    changes = {"rank: 8": "rank: 16", "[dense]": "[q_proj]", "alpha: 4": "alpha: 8"}
    for before, after in changes.items():
        text = f"{LORA.replace(before, after)}load: {adapters}\n"
        assert [id for id, _ in found(text)] == ["checkpoint-other-adapters"], after
        expected = [] if "alpha" in after else ["checkpoint-other-adapters"]
        assert [id for id, _ in found(f"{text}finetune: true\n")] == expected, after


def test_a_full_model_is_not_taken_for_adapters_nor_the_other_way_round(tmp_path: Path) -> None:
    model, adapters = tmp_path / "model", tmp_path / "adapters"
    checkpoint(model)
    checkpoint(adapters, model, **SAVED)
    for text in (f"load: {model}\n", f"load: {model}\nfinetune: true\nbase_checkpoint: {model}\n"):
        assert [id for id, _ in found(LORA + text)] == ["checkpoint-without-adapters"]
    generating = found(f"{LORA}load: {model}\nfinetune: true\n", training=False)
    assert [id for id, _ in generating] == ["checkpoint-without-adapters"]
    [problem] = problems(f"load: {adapters}\n")
    assert problem.id == "checkpoint-of-adapters" and "lora.rank 8" in problem.what
    assert 'set lora: {rank: 8, alpha: 4, targets: ["dense"]}' in problem.hint
    assert str(model / "global_step10") in problem.hint
    assert found(f"load: {model}\n") == []


def test_a_checkpoint_to_read_without_adapters_is_refused_with_the_folder_that_has_them(tmp_path: Path) -> None:
    model, run = tmp_path / "model", tmp_path / "run"
    folder = checkpoint(model, lora={"alpha": 4.0})
    text = f"{LORA}load: {model}\nfinetune: true\nsave: {run}\ncheckpoint_factor: 5\n"
    [problem] = problems(text, training=False)
    assert problem.id == "checkpoint-without-adapters"
    pinned(problem)
    checkpoint(run, model, **SAVED)
    [problem] = problems(text, training=False)
    assert f"set load to {run} " in problem.hint
    (folder / "config.json").unlink()  # as another program writes it
    (folder / "files.json").unlink()
    (folder / "weights.pt").touch()
    assert [id for id, _ in found(text, training=False)] == ["checkpoint-without-adapters"]
    assert found(text) == []


def test_values_are_shown_as_in_yaml(tmp_path: Path) -> None:
    checkpoint(tmp_path / "model")
    checkpoint(tmp_path / "adapters", tmp_path / "model", **SAVED)
    [problem] = problems(f"{LORA.replace('[dense]', '[q_proj]')}load: {tmp_path / 'adapters'}\n")
    assert problem.what.startswith('lora.targets is ["q_proj"] here, but ["dense"] in')
    assert problem.hint == 'set lora.targets to ["dense"]'


def test_a_rank_above_the_smaller_side_of_a_target_is_a_warning() -> None:
    """The matrices of the smallest model are 64 wide, and with two key/value heads its keys have 32 rows."""
    text = "base_checkpoint: model\nlora: {rank: 64, targets: [k_proj, q_proj]}\n"
    assert "lora-rank-above-side" not in [id for id, _ in found(text)]
    problem, *_ = problems(text + "num_kv_heads: 2\n")
    assert (problem.severity, problem.id) == ("warning", "lora-rank-above-side")
    pinned(problem)
    assert problem.where and problem.where.text.startswith("lora")
    assert "lora-rank-above-side" not in [id for id, _ in found(text.replace("64", "32") + "num_kv_heads: 2\n")]
