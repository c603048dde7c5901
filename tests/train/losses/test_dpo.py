"""DPO runs: the losses of transformers on every layout, the reference model's log-probabilities, resuming."""

from __future__ import annotations

import json
import math
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neoxargs.checks.checkpoint.model import other_model
from neoxargs.config.config import Config
from neoxargs.files.checkpoints import folder as checkpoint_folder
from neoxargs.files.checkpoints.checksums import digest_of
from neoxargs.files.token_files.sources import sources
from neoxargs.train.checkpoint.references import read
from neoxargs.train.evaluate import for_evaluation
from tests.support import preference
from tests.support.damage import damage_weights
from tests.support.frozen_runs import configured, losses, trained, trained_base
from tests.support.huggingface import SEQ
from tests.support.paths import needs_corpus
from tests.support.preference_runs import PAIRS, llama, of_gpt_neox, on_every_layout, resumed_equals_whole
from tests.support.ranks import run_ranks


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_steps_on_every_layout_are_those_of_transformers(tmp_path: Path) -> None:
    model, ours = llama(tmp_path)
    expected = preference.steps_on_pairs(model, preference.written(tmp_path, PAIRS, SEQ), 4)
    alone = on_every_layout(tmp_path, ours, expected[:3], **preference.settings(tmp_path))
    # After the third step, on the same pairs.
    assert alone["loss"] == pytest.approx(expected[3], abs=3e-6)
    assert 0.5 < alone["validation/reward_acc"] <= 1
    assert alone["validation/margins"] == pytest.approx(
        alone["validation/chosen_rewards"] - alone["validation/rejected_rewards"], abs=1e-5
    )
    assert expected[0] == pytest.approx(math.log(2))


def run(folder: Path, save: Path, iterations: int, text: str = "", **values: Any) -> Config:
    """A run of the small model of frozen_runs.py on the pairs of the folder."""
    given = {**preference.settings(folder), "train_batch_size": 2, "train_iters": iterations, **values}
    return configured(folder, text, save=save, **given)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model that was trained for two steps, and with pairs."""
    folder = trained_base(tmp_path_factory.mktemp("base"))
    preference.written(folder, PAIRS, 16)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("text", ["", "lora: {rank: 2}\n"], ids=["all weights", "adapters"])
def test_a_resumed_run_compares_with_the_model_before_the_first_step(base: Path, tmp_path: Path, text: str) -> None:
    """Also for pairs that the first part of the run did not read: those of steps 3 and 4."""
    ends = resumed_equals_whole(partial(run, base, text=text), base / "base", tmp_path)
    tables = [read(end).tables for end in ends]
    assert [*tables[0]] == [*tables[1]] and all(np.array_equal(tables[0][name], tables[1][name]) for name in tables[0])
    assert all((table < 0).all() for table in tables[0].values())
    on_two = run(base, tmp_path / "on two", 4, text, load=tmp_path / "parts", iteration=2, tensor=2, eval_iters=0)
    run_ranks(trained, 2, [on_two])
    assert losses(tmp_path / "on two") == pytest.approx(losses(tmp_path / "whole")[2:], rel=1e-5)


@pytest.mark.slow
def test_a_run_begins_with_the_weights_of_another_objective(base: Path, tmp_path: Path) -> None:
    """The launcher does not take the objective, or the strength of its loss, for a part of the model."""
    config = run(base, tmp_path, 1, load=base / "base", finetune="true")
    assert list(other_model(config, base / "base" / "global_step2")) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_reference_model_that_was_damaged_or_replaced_is_noticed(base: Path, tmp_path: Path) -> None:
    """When a resumed run reads further pairs, whose log-probabilities need the model before the first step."""
    model, parts = tmp_path / "model" / "global_step2", tmp_path / "parts"
    shutil.copytree(base / "base", model.parent)
    start: dict[str, Any] = {"load": model.parent, "finetune": "true"}
    run_ranks(trained, 1, [run(base, parts, 2, eval_iters=0, **start)])
    resumed = run(base, parts, 4, eval_iters=0, load=parts)
    file = damage_weights(model)
    with pytest.raises(AssertionError, match=f"cannot be loaded: {file.name} has the checksum"):
        run_ranks(trained, 1, [resumed])
    # Complete, but another model.
    digests = checkpoint_folder.digests(model)
    checkpoint_folder.write_digests(model, digests | {file.name: digest_of(file)})
    with pytest.raises(AssertionError, match="which now contains another one"):
        run_ranks(trained, 1, [resumed])


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_random_weights_cannot_be_restored(tmp_path: Path) -> None:
    preference.written(tmp_path, PAIRS, 16)
    run_ranks(trained, 1, [run(tmp_path, tmp_path / "out", 1, dpo_reference_free="true")])
    free = json.loads((tmp_path / "out" / "metrics.jsonl").read_text().splitlines()[1])
    assert free["train/ref_pos"] == 0 and free["train/chosen_pos"] < 0
    with pytest.raises(AssertionError, match="contains no reference log-probabilities of 8 pairs of this run's data"):
        run_ranks(trained, 1, [run(tmp_path, tmp_path / "out", 4, load=tmp_path / "out")])
    run_ranks(trained, 1, [run(tmp_path, tmp_path / "new", 1, load=tmp_path / "out", finetune="true")])
    assert losses(tmp_path / "new") == [pytest.approx(math.log(2), abs=1e-5)]
    # eval.py measures the perplexity of the preferred answers.
    evaluated = for_evaluation(run(tmp_path, tmp_path / "new", 1))
    (source,) = sources(evaluated.data, evaluated.post_training)["validation"]
    assert source.files == [str(tmp_path / "pos"), str(tmp_path / "pos_label")]


@pytest.mark.slow
@pytest.mark.timeout(300)
@needs_corpus
def test_gpt_neox_s_configurations_train(tmp_path: Path) -> None:
    preference.learnable(tmp_path, 48, 16)
    data = {key: value for key, value in preference.settings(tmp_path).items() if key.endswith("_data_paths")}
    heads = {"llama3-8b": 2, "benchmarking/mistral": 2, "benchmarking/llama-13b": 4}
    configs = [
        of_gpt_neox(tmp_path / name, f"{name}-dpo.yml", data, "dpo_beta=0.5", heads=count)
        for name, count in heads.items()
    ]
    run_ranks(trained, 2, configs, timeout=240)
    for name in heads:
        found = losses(tmp_path / name)
        assert found[0] == pytest.approx(math.log(2), abs=1e-5) and sum(found[-3:]) / 3 < 0.6, name
