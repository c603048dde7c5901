"""Runs of GPT-NeoX's own code, continued: our losses from iteration 11 on, and our logits, are GPT-NeoX's."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from neoxargs.convert.huggingface import importing
from neoxargs.resolve import resolve
from neoxargs.targets.wire_format import script_arguments
from neoxargs.train.process import setup
from tests.support.loaded_engine import loaded_arguments
from tests.support.neox_runs import folder_of, unpacked, with_marks
from tests.support.processes import step_rows, train_on_rank
from tests.support.ranks import run_ranks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ZERO1 = ("pipe_parallel_size=0", "zero_optimization.stage=1", "gradient_accumulation_steps=1")
#: Layout -> number of ranks and overrides.
HERE: dict[str, tuple[int, tuple[str, ...]]] = {
    "1 process": (1, ("pipe_parallel_size=0",)),
    "tp2": (2, ("model_parallel_size=2", "pipe_parallel_size=0")),
    "pp2": (2, ("model_parallel_size=1", "pipe_parallel_size=2")),
    "dp2 ZeRO-1": (2, ("model_parallel_size=1", *ZERO1)),
}
#: Runs with optimizer state at iteration 10 -> the largest difference of a loss on any layout.
THERE = {"gpt2": 1e-5, "pythia": 1e-5, "pythia-seq-zero1": 1e-5}
#: These run other mathematics in GPT-NeoX: each tensor parallel rank updates a bias of its own, and the clipping norm
#: leaves out biases and norms of later pipeline stages.
DIFFERENT = {"pythia-mp2": 1e-2, "pythia-pp2": 2e-3}


def overrides(name: str, **values: Any) -> list[str]:
    given = {
        "load": folder_of(name) / "checkpoints", "data_path": unpacked() / "data/corpus_text_document",
        "num_gpus": "null", "vocab_file": unpacked() / "data/tokenizer.json", "softmax_over_padding": "true", **values,
    }  # fmt: skip
    return [f"{key}={value}" for key, value in given.items()]


def losses(folder: Path, name: str, layout: str, **values: Any) -> dict[int, float]:
    """Return our losses by iteration, from the checkpoint of iteration 10 on."""
    ranks, changes = HERE[layout]
    folder.mkdir()
    given = overrides(name, **{"iteration": 10, "save": folder / "saved", "run_dir": folder / "out", **values})
    config = resolve([folder_of(name) / f"{name}.yml"], [*given, *changes], gpus=ranks)
    for code, _, errors in run_ranks(train_on_rank, ranks, script_arguments(config)):
        assert code == 0, errors
    return {row["step"]: row["loss"] for row in step_rows(folder)}


def theirs(name: str) -> dict[int, float]:
    rows = [line.split("\t") for line in (folder_of(name) / "losses.tsv").read_text().splitlines()[1:]]
    return {int(row[0]): float(row[1]) for row in rows if int(row[0]) > 10}


@pytest.mark.parametrize("layout", HERE)
@pytest.mark.parametrize("name", with_marks(*THERE))
def test_the_loss_curve_continues(tmp_path: Path, name: str, layout: str) -> None:
    assert losses(tmp_path / "run", name, layout) == pytest.approx(theirs(name), abs=THERE[name])


@pytest.mark.parametrize("name", with_marks(*DIFFERENT))
def test_where_gpt_neox_computes_something_else_the_first_loss_is_equal(tmp_path: Path, name: str) -> None:
    ours, expected = losses(tmp_path / "run", name, "1 process", model_parallel_size=1), theirs(name)
    assert ours[11] == pytest.approx(expected[11], abs=1e-5)
    assert ours == pytest.approx(expected, abs=DIFFERENT[name])


def test_the_tolerance_would_reveal_a_fresh_optimizer(tmp_path: Path) -> None:
    ours = losses(tmp_path / "run", "pythia", "1 process", no_load_optim="true", override_lr_scheduler="true")
    assert max(abs(ours[step] - loss) for step, loss in theirs("pythia").items()) > 1e-3


def test_without_optimizer_state_the_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="the GPT-NeoX checkpoint's optimizer state cannot be restored: the"):
        losses(tmp_path / "run", "llama", "1 process", iteration=20, train_iters=30)


def logits(arguments: list[str], tokens: Any) -> Any:
    """Return the logits of the model that a run loads, for `run_ranks` with one rank."""
    built = loaded_arguments(arguments, setup.start("gloo", seed=1), 500).built
    with torch.no_grad():
        found = built.deepspeed.module.eval()(torch.tensor(tokens[:, :-1].astype("int64")))
    return found.float().numpy()


@pytest.mark.parametrize("name", with_marks(*THERE, *DIFFERENT, "llama"))
def test_the_logits_are_gpt_neox_s(tmp_path: Path, name: str) -> None:
    given = overrides(name, iteration=20, finetune="true", pipe_parallel_size=0, model_parallel_size=1)
    given += [f"run_dir={tmp_path}", "zero_optimization.stage=0"]
    arguments = script_arguments(resolve([folder_of(name) / f"{name}.yml"], given, gpus=1))
    found = run_ranks(logits, 1, arguments, np.load(folder_of(name) / "tokens.npy"))[0]
    expected = np.load(folder_of(name) / "logits.npy")[..., :500]
    every = found.shape[1] // expected.shape[1]  # the repository has every eighth position
    assert np.abs(found[:, ::every, :500] - expected).max() < 1e-5


def test_an_imported_checkpoint_continues_as_well(tmp_path: Path) -> None:
    folder = tmp_path / "imported"
    words = [str(folder_of("pythia") / "checkpoints"), "--iteration", "10", "--to", str(folder)]
    assert importing.main(words) == 0
    assert losses(tmp_path / "run", "pythia", "pp2", load=folder) == pytest.approx(theirs("pythia"), abs=1e-5)


def test_a_copy_under_another_name_loads_as_well(tmp_path: Path) -> None:
    """As published: the files of one step in a folder of their own, without `latest`."""
    folder = tmp_path / "step10"
    shutil.copytree(folder_of("pythia") / "checkpoints/global_step10", folder)
    assert losses(tmp_path / "run", "pythia", "1 process", load=folder) == pytest.approx(theirs("pythia"), abs=1e-5)
