"""`deepy export` refuses a checkpoint that does not contain what the configuration says, and useless options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from neoxargs.convert.huggingface import exporting
from neoxargs.files.checkpoints import folder as checkpoint_folder
from neoxargs.files.checkpoints.folder import Base
from tests.support.frozen_runs import YAML
from tests.support.snapshots import pinned

LORA = "lora: {rank: 4, alpha: 8}\n"
#: What a checkpoint records of the configuration of its run.
SHAPE = {"num_layers": 2, "hidden_size": 32, "tokenizer_type": "ByteLevelTokenizer", "padded_vocab_size": 320}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The configuration files and the checkpoints (without weights) of a run that finetunes a model."""
    folders = f"load: {tmp_path / 'model'}\nsave: {tmp_path / 'run'}\n"
    start = f"{YAML}{folders}train_iters: 4\ndata_path: text\nfinetune: true\n"
    (tmp_path / "all.yml").write_text(start)
    (tmp_path / "lora.yml").write_text(start + LORA)
    add_checkpoint(tmp_path / "model")
    return tmp_path


def add_checkpoint(root: Path, base: Path | None = None) -> None:
    """Make a checkpoint; of adapters for `base`, if it is not None."""
    checkpoint = root / "global_step2"
    checkpoint.mkdir(parents=True)
    adapters = {"lora": {"rank": 4, "alpha": 8.0}} if base else {}
    (checkpoint / checkpoint_folder.CONFIG).write_text(json.dumps({**SHAPE, **adapters}))
    if base:
        (checkpoint / checkpoint_folder.BASE).write_text(Base.of(base / "global_step2").to_json())


def refused(folder: Path, file: str, *more: str) -> bool:
    """Whether the export ends with exit code 1 and writes nothing."""
    words = [str(folder / file), "--to", str(folder / "to"), "--gpus", "1", *more]
    return exporting.main(words) == 1 and not (folder / "to").exists()


@pytest.mark.parametrize("more", [[], ["--format", "neox"], ["--adapter"]])
def test_adapters_are_not_exported_as_a_model(
    folder: Path, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    add_checkpoint(folder / "run", folder / "model")
    assert refused(folder, "all.yml", "--set", f"load={folder / 'run'}", *more)
    shown = capsys.readouterr().err
    assert "[checkpoint-of-adapters]" in shown and "set lora: {rank: 4, alpha: 8}" in shown


@pytest.mark.parametrize("more", [[], ["--format", "neox"], ["--adapter"]])
def test_a_model_is_not_exported_as_adapters(folder: Path, more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    add_checkpoint(folder / "run", folder / "model")
    assert refused(folder, "lora.yml", *more)
    shown = capsys.readouterr().err
    assert "[checkpoint-without-adapters]" in shown and f"set load to {folder / 'run'}" in shown


def test_the_model_that_a_run_started_from_is_exported_with_a_warning(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unless the command names it. The checkpoints have no weights, so the export itself is refused."""
    warning = f"pass --set load={folder / 'run'}\n"
    assert refused(folder, "all.yml") and warning not in capsys.readouterr().err
    add_checkpoint(folder / "run")
    assert refused(folder, "all.yml")
    shown = capsys.readouterr().err
    assert warning in shown
    pinned(shown, "[checkpoint-unread]")
    assert "[checkpoint-without-inventory]" in shown
    for chosen in ("model", "run"):
        assert refused(folder, "all.yml", "--set", f"load={folder / chosen}")
        shown = capsys.readouterr().err
        assert "[checkpoint-without-inventory]" in shown and "warning" not in shown


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--adapter", "--format", "neox"], ["--format has no effect with --adapter"]),
        (["--base-model", "x"], ["--base-model has no effect without --adapter"]),
        (["--adapter", "--dtype", "float16", "--vocab-size", "9"],
         ["--dtype has no effect with --adapter", "--vocab-size has no effect with --adapter"]),
        (["--format", "neox", "--architecture", "GPT2LMHeadModel", "--max-shard-size", "1GB"],
         ["--architecture has no effect with --format neox", "--max-shard-size has no effect with --format neox"]),
    ],
)  # fmt: skip
def test_an_option_without_effect_is_refused(
    folder: Path, words: list[str], expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(folder, "lora.yml", *words)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert lines == [f"error: {what} [export-option-not-applicable]" for what in expected]
