"""Reward models: the loss and the gradients of transformers on every layout, resuming, and what is refused."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from neoxargs.checks.all import fit_of_checkpoint
from neoxargs.checks.checkpoint.model import other_head
from neoxargs.config.config import Config
from neoxargs.train.parallel.init import initial_values
from tests.support import preference
from tests.support.frozen_runs import configured, losses, saved, trained, trained_base
from tests.support.huggingface import SEQ
from tests.support.paths import needs_corpus
from tests.support.preference_runs import held_out, llama, of_gpt_neox, on_every_layout, resumed_equals_whole
from tests.support.ranks import run_ranks

PAIRS, PENALTY, SEED = 8, 0.05, 1234


def head(width: int) -> torch.Tensor:
    """Return the initial weight of the head, which depends on the seed only."""
    return initial_values((1, width), lambda x, random: x.normal_(0, 0.02, generator=random), SEED, "rm_linear.weight")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_steps_on_every_layout_are_those_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    base, ours = llama(tmp_path)
    model = transformers.LlamaForSequenceClassification(base.config)
    model.config.num_labels = 1
    model.model, model.score = base.model, torch.nn.Linear(base.config.hidden_size, 1, bias=False)
    model.score.weight.data.copy_(head(base.config.hidden_size))
    # Otherwise, the embedding of the end token, which this model also has as padding, is not trained.
    model.model.embed_tokens.padding_idx = None
    pairs = preference.ended(tmp_path, PAIRS, SEQ)
    expected, margins = preference.steps_of_a_reward_model(model, pairs, PENALTY, 3)
    values = settings(tmp_path) | {"z_loss": PENALTY, "seed": SEED, "init_method": "normal", "init_method_std": 0.02}
    found = on_every_layout(tmp_path, ours, expected, **values)
    assert found["validation/margin"] == pytest.approx(sum(margins) / PAIRS, abs=3e-5)
    assert found["validation/accuracy"] == sum(margin > 0 for margin in margins) / PAIRS


def settings(folder: Path) -> dict[str, Any]:
    given = preference.settings(folder) | {"train_impl": "rm"}
    del given["dpo_beta"]
    return given


def run(folder: Path, save: Path, iterations: int, **values: Any) -> Config:
    """A reward model from the small model of frozen_runs.py, on the pairs of the folder."""
    given = {**settings(folder), "train_batch_size": 2, **values}
    return configured(folder, "", save=save, train_iters=iterations, **given)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model that was trained for two steps, and with pairs."""
    folder = trained_base(tmp_path_factory.mktemp("base"))
    preference.ended(folder, PAIRS, 16)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_resumed_run_equals_an_uninterrupted_one(base: Path, tmp_path: Path) -> None:
    one = saved(resumed_equals_whole(partial(run, base), base / "base", tmp_path)[0])
    assert one["rm_linear.weight"].shape == (1, 32) and "output.weight" not in one
    on_two = run(base, tmp_path / "on two", 4, load=tmp_path / "parts", iteration=2, tensor=2, eval_iters=0)
    run_ranks(trained, 2, [on_two])
    assert losses(tmp_path / "on two") == pytest.approx(losses(tmp_path / "whole")[2:], rel=1e-5)


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_checkpoints_of_the_other_kind_are_refused(base: Path, tmp_path: Path) -> None:
    rewards = run(base, tmp_path / "out", 1, load=base / "base", finetune="true")
    run_ranks(trained, 1, [rewards])
    made_by = tmp_path / "out" / "global_step1"
    (problem,) = other_head(configured(base, "", load=tmp_path / "out", train_iters=2), made_by)
    assert problem.what == f"load ({made_by}): the checkpoint is of a reward model, which predicts no tokens"
    language = base / "base" / "global_step2"
    (problem,) = other_head(run(base, tmp_path / "x", 1, load=base / "base"), language)
    assert problem.what == f"load ({language}): the checkpoint has no reward head"
    assert list(other_head(rewards, language)) == []
    (problem,) = fit_of_checkpoint(run(base, tmp_path / "x", 1, load=tmp_path / "out"))
    assert problem.id == "reward-model-writes-nothing"


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_language_model_s_loss_is_not_compared_with_rewards(base: Path, tmp_path: Path) -> None:
    validates = {"checkpoint_validation_with_forward_pass": "true"}
    language = configured(base, "", save=tmp_path / "language", train_iters=1, **validates)
    rewards = run(base, tmp_path / "rewards", 1, load=tmp_path / "language", finetune="true", **validates)
    run_ranks(trained, 1, [language, rewards])
    assert len(losses(tmp_path / "rewards")) == 1


@pytest.mark.slow
@pytest.mark.timeout(200)
@needs_corpus
def test_gpt_neox_s_configuration_trains(tmp_path: Path) -> None:
    preference.learnable_ended(tmp_path, 48, 16)
    data = {key: value for key, value in preference.settings(tmp_path).items() if key.endswith("_data_paths")}
    run_ranks(trained, 2, [of_gpt_neox(tmp_path / "run", "llama3-8b-rm.yml", data, "rope_fusion=false")])
    assert sum(losses(tmp_path / "run")[-3:]) / 3 < 0.4
    assert held_out(tmp_path / "run")["validation/accuracy"] > 0.9
