"""KTO runs: the losses of transformers on every layout, resuming, and what is refused."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neoxargs.config.config import Config
from neoxargs.files.token_files.packing import pack
from neoxargs.resolve import resolve
from neoxargs.train.checkpoint.references import read
from neoxargs.train.evaluate import for_evaluation
from tests.support import preference
from tests.support.frozen_runs import configured, losses, trained, trained_base
from tests.support.huggingface import MODELS, SEQ, Case, imported, made
from tests.support.paths import NEOX_HEAD, needs_corpus
from tests.support.preference_runs import DESCENT, LAYOUTS, SCALED, held_out, resumed_equals_whole
from tests.support.ranks import run_ranks

#: Pairs, whose 2 x 8 answers are one batch of four micro batches.
PAIRS, STEPS, MICRO_BATCH = 8, 3, 4
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
    pytest.importorskip("transformers")
    MODELS.setdefault("Llama", Case("Llama", {}))
    model = made("Llama")
    ours = imported(tmp_path, model)
    answers = preference.rated(tmp_path, PAIRS, SEQ)

    def of(name: str, ranks: int = 1, **more: Any) -> Config:
        sizes = {"train_batch_size": 2 * PAIRS, "train_micro_batch_size_per_gpu": MICRO_BATCH, "train_iters": STEPS}
        values = {**preference.settings_of_kto(tmp_path), **DESCENT, **sizes, "load": ours, "run_dir": tmp_path / name}
        given = [f"{key}={value}" for key, value in {**values, **more}.items()]
        return resolve([ours / "model.yml"], given, gpus=ranks)

    alone = of("one process")
    expected = preference.steps_of_kto(model, answers, documents_of_steps(answers.documents, alone.training.seed))
    run_ranks(trained, 1, [alone])
    run_ranks(trained, 2, [of(name, 2, **sizes) for name, sizes in LAYOUTS.items()], timeout=300)
    found = held_out(tmp_path / "one process")
    for name in ("one process", *LAYOUTS):
        assert losses(tmp_path / name) == pytest.approx(expected[:STEPS], abs=3e-6), name
        assert held_out(tmp_path / name) == pytest.approx(found, abs=3e-5), name
    assert found["loss"] == pytest.approx(expected[STEPS], abs=3e-6)
    # At first, every answer is as likely as under the reference model: half of its weight.
    assert expected[0] == pytest.approx(sum(preference.WEIGHTS) / 4) and expected[2] < expected[0] - 0.01
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
    """With everything but sizes, precision, learning rate and beta as its authors set it, and with rewards of int32."""
    preference.learnable_rated(tmp_path, 24, 16, STORED[stored])
    paths = [f"{split}{kind}_data_paths={tmp_path / f'rated{kind}'}"
             for split in ("train", "valid", "test") for kind in ("", "_label", "_reward")]  # fmt: skip
    scaled = [option for option in SCALED if not option.startswith("dpo_beta")]
    sizes = ["kto_beta=0.5", "num_kv_heads=2", "mlp_multiple_of=64", "intermediate_size=192", "rope_fusion=false"]
    places = [f"{key}={tmp_path / 'run'}" for key in ("save", "run_dir")]
    neox = NEOX_HEAD / "_post-training" / "llama3-8b-kto.yml"
    run_ranks(trained, 2, [resolve([neox], [*scaled, *sizes, *paths, *places], gpus=2)], timeout=150)
    found = losses(tmp_path / "run")
    assert found[0] == pytest.approx(0.5, abs=1e-5) and sum(found[-3:]) / 3 < 0.42
    assert held_out(tmp_path / "run")["validation/reward_acc"] > 0.9


def test_eval_measures_the_loss_of_the_answers(base: Path, tmp_path: Path) -> None:
    evaluated = for_evaluation(run(base, base / "base", 1))
    assert evaluated.post_training.train_impl == "normal" and evaluated.data.train_data_paths
