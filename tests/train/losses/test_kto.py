"""KTO runs: the losses of transformers on every layout, resuming, and what is refused."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neoxargs.config.config import Config
from neoxargs.files.token_files.packing import pack
from neoxargs.train.checkpoint.references import read
from neoxargs.train.evaluate import for_evaluation
from tests.support import preference
from tests.support.frozen_runs import configured, losses, trained, trained_base
from tests.support.huggingface import SEQ
from tests.support.paths import needs_corpus
from tests.support.preference_runs import held_out, llama, of_gpt_neox, on_every_layout, resumed_equals_whole
from tests.support.ranks import run_ranks

#: Pairs, whose 2 x 8 answers are one batch of four micro batches.
PAIRS, STEPS, MICRO_BATCH, SEED = 8, 3, 4, 1234
#: GPT-NeoX's tool writes rewards as int32.
STORED = {"float32": np.float32, "int32": np.int32}


def documents_of_steps(documents: list[list[int]], seed: int) -> list[list[list[int]]]:
    """Return the documents of each micro batch of each step, and of the evaluation after them; a step is a pass."""
    lengths = np.array([len(ids) for ids in documents])
    first = pack("unpacked", lengths, lengths - 1, SEQ + 1, True, seed).documents
    random = np.random.RandomState(seed)
    passes = [random.permutation(len(first)) for _ in range(STEPS)]
    orders = [first.tolist(), *(first[order].tolist() for order in passes[1:]), first.tolist()]
    return [[order[at : at + MICRO_BATCH] for at in range(0, len(order), MICRO_BATCH)] for order in orders]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_steps_on_every_layout_are_those_of_transformers(tmp_path: Path) -> None:
    model, ours = llama(tmp_path)
    answers = preference.rated(tmp_path, PAIRS, SEQ)
    expected = preference.steps_of_kto(model, answers, documents_of_steps(answers.documents, SEED))
    sizes = {"train_batch_size": 2 * PAIRS, "train_micro_batch_size_per_gpu": MICRO_BATCH, "seed": SEED}
    values = preference.settings_of_kto(tmp_path)
    found = on_every_layout(tmp_path, ours, expected[:STEPS], **values, **sizes)
    assert found["loss"] == pytest.approx(expected[STEPS], abs=3e-6)
    # At first, every answer is as likely as under the reference model: half of its weight.
    assert expected[0] == pytest.approx(sum(preference.WEIGHTS) / 4)
    assert 0.5 < found["validation/reward_acc"] <= 1 and found["validation/pos_policy_logp"] < 0


def run(folder: Path, save: Path, iterations: int, text: str = "", **values: Any) -> Config:
    """A run of the small model of frozen_runs.py on the rated answers of the folder."""
    given = {**preference.settings_of_kto(folder), "train_batch_size": 4, "train_iters": iterations, **values}
    return configured(folder, text, save=save, **given)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model that was trained for two steps, and with rated answers."""
    folder = trained_base(tmp_path_factory.mktemp("base"))
    preference.rated(folder, PAIRS, 16)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("text", ["", "lora: {rank: 2}\n"], ids=["all weights", "adapters"])
def test_a_resumed_run_compares_with_the_model_before_the_first_step(base: Path, tmp_path: Path, text: str) -> None:
    """Also for answers that the first part of the run did not read: those of steps 3 and 4."""
    ends = resumed_equals_whole(partial(run, base, text=text), base / "base", tmp_path)
    (table,), (again,) = (read(end).tables.values() for end in ends)
    assert np.array_equal(table, again) and (table < 0).all() and table.shape == (2 * PAIRS, 1)


@pytest.mark.slow
@pytest.mark.timeout(200)
@needs_corpus
@pytest.mark.parametrize("stored", STORED)
def test_gpt_neox_s_configuration_trains(tmp_path: Path, stored: str) -> None:
    preference.learnable_rated(tmp_path, 24, 16, STORED[stored])
    given = preference.settings_of_kto(tmp_path).items()
    data = {key: value for key, value in given if key.endswith("_data_paths")}
    config = of_gpt_neox(tmp_path / "run", "llama3-8b-kto.yml", data, "kto_beta=0.5", "rope_fusion=false")
    run_ranks(trained, 2, [config])
    found = losses(tmp_path / "run")
    assert found[0] == pytest.approx(0.5, abs=1e-5) and sum(found[-3:]) / 3 < 0.42
    assert held_out(tmp_path / "run")["validation/reward_acc"] > 0.9


def test_eval_measures_the_loss_of_the_answers(base: Path, tmp_path: Path) -> None:
    evaluated = for_evaluation(run(base, base / "base", 1))
    assert evaluated.post_training.train_impl == "normal" and evaluated.data.train_data_paths
