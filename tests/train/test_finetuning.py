"""Finetuning on labels: the steps of transformers with labels of -100, documents apart, epochs, GPT-NeoX's files."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from neoxargs.base.request import Request
from neoxargs.config.config import Config
from neoxargs.resolve import resolve
from neoxargs.runs.run_spec import resolve_run
from neoxargs.train.generation.logprobs import Scorer
from neoxargs.train.losses.cross_entropy import IGNORED
from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.shared import Shared
from neoxargs.train.parallel.layers import Weights
from neoxargs.train.process import setup
from tests.support import finetuning_parity as parity
from tests.support import peft_models
from tests.support.finetuning import drawn, labelled, pair
from tests.support.finetuning_table import differences, page_rows
from tests.support.frozen_runs import trained
from tests.support.paths import NEOX_HEAD, needs_corpus
from tests.support.ranks import run_ranks
from tests.support.small_gpt import VOCABULARY, randomised, small
from tests.support.smallest import YAML
from tests.support.trials import MICRO_BATCH, SAMPLES, Training, Trial


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", parity.CASES)
def test_three_steps_on_every_layout_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    """Documents of `best_fit` are computed alone there, so that nothing of another document can be seen."""
    pytest.importorskip("transformers")
    for layout, found in differences(tmp_path, name).items():
        assert found.losses < 1e-5 and found.weights < 1e-5, (layout, found)


#: Models whose attention and positions are computed in different ways.
MASKED: dict[str, dict[str, Any]] = {
    "learned": {"pos_emb": "learned"},
    "rotary": {"pos_emb": "rotary", "rotary_pct": 0.5},
    "alibi": {"pos_emb": "alibi"},
    "rpe": {"pos_emb": "rpe"},
    "window": {"pos_emb": "rotary", "sliding_window_width": 3},
    "sinusoidal": {"pos_emb": "sinusoidal"},
}


@pytest.mark.parametrize("name", MASKED)
def test_a_packed_document_has_the_logits_that_it_has_alone(name: str) -> None:
    """The rest of the sample is padding."""
    model = GPT(small(pack_impl="best_fit", **MASKED[name]), VOCABULARY, Weights(), Shared())
    randomised(model).eval()
    sizes = [5, 1, 6]
    documents = torch.randint(VOCABULARY.size, (sum(sizes),), generator=torch.Generator().manual_seed(1)).split(sizes)
    tokens = torch.cat([*documents, torch.zeros(4, dtype=torch.int64)]).unsqueeze(0)
    starts = torch.tensor([[0] * 5 + [5] + [6] * 6 + [12] * 4])
    packed = model(tokens, starts=starts)[0]
    for number, document in enumerate(documents):
        begin = sum(sizes[:number])
        torch.testing.assert_close(
            packed[begin : begin + len(document)], model(document.unsqueeze(0))[0], atol=1e-5, rtol=0
        )


def without_trained_tokens(average: str, sizes: dict[str, int]) -> tuple[float, float, bool]:
    """Return the loss of a batch of which only the last micro batch on the last rank is trained, that of a batch of
    which none is, and whether all weights are still finite."""
    setup.start("gloo", seed=1)
    training = Training(Trial({"loss_average": average, **sizes}))
    losses = []
    for kept in (1, 0):
        found = training.micro_batches(0)
        batches = None if found is None else iter([next(found) for _ in range(SAMPLES)])
        steps = training.engine.deepspeed.gradient_accumulation_steps()
        last = training.mesh.data.rank == training.mesh.data.size - 1
        masked = None if batches is None else (
            one if kept and last and number == steps - 1 else replace(one, labels=torch.full_like(one.labels, IGNORED))
            for number, one in enumerate(batches)
        )  # fmt: skip
        losses.append(training.engine.train_step(masked).loss)
    weights = training.engine.deepspeed.module.parameters()
    return losses[0], losses[1], all(bool(weight.isfinite().all()) for weight in weights)


@pytest.mark.parametrize("sizes", [{}, {"pipe_parallel_size": 2}])
def test_a_micro_batch_without_trained_tokens_has_loss_0(sizes: dict[str, int]) -> None:
    """One of the four micro batches is trained: its loss is a quarter of the mean, or all of it."""
    for (by_batch, none, finite), (by_token, still_none, still_finite) in zip(
        *(run_ranks(without_trained_tokens, 2, average, sizes) for average in ("micro_batches", "tokens")), strict=True
    ):
        assert by_token == pytest.approx(4 * by_batch, rel=1e-5) and by_token > 3
        assert none == still_none == 0 and finite and still_finite


def scored(sizes: dict[str, int]) -> tuple[float, float, float]:
    """Return the mean loss of separate documents: in an evaluation, as eval.py scores it, and with one document."""
    setup.start("gloo", seed=1)
    training = Training(Trial({"pack_impl": "best_fit", **sizes}))
    count = training.engine.deepspeed.gradient_accumulation_steps()

    def batches(begin: int) -> Any:
        found = training.micro_batches(0)
        starts = torch.tensor([0] * begin + [begin] * (16 - begin)).expand(MICRO_BATCH, -1)
        return None if found is None else (replace(next(found), starts=starts) for _ in range(count))

    losses = [training.engine.evaluate(batches(begin), 1).loss for begin in (7, 0)]
    found = Scorer(training.engine, training.mesh, MICRO_BATCH).run(batches(7), count)
    logs = [-float(logs.mean()) for _, logs, _ in found]
    return losses[0], sum(logs) / len(logs) if logs else losses[0], losses[1]


@pytest.mark.parametrize("sizes", [{"model_parallel_size": 2}, {"pipe_parallel_size": 2}])
def test_evaluations_separate_documents_too(sizes: dict[str, int]) -> None:
    for evaluated, by_scorer, joined in run_ranks(scored, 2, sizes):
        assert evaluated == pytest.approx(by_scorer, rel=1e-5)
        assert abs(evaluated - joined) > 1e-4


def losses(folder: Path) -> dict[int, float]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row["loss"] for row in rows if row["event"] == "step"}


@pytest.mark.slow
def test_a_run_resumed_within_an_epoch_goes_on_bit_for_bit(tmp_path: Path) -> None:
    documents = drawn(40, 60)
    text, label = pair(tmp_path, documents, labelled(documents))
    file = tmp_path / "run.yml"
    lines = [YAML.replace("train_iters: 10", "train_epochs: 2"), "pack_impl: best_fit", "loss_average: tokens"]
    lines += [f"{split}_data_paths: [{text}]" for split in ("train", "valid", "test")]
    lines += [f"{split}_label_data_paths: [{label}]" for split in ("train", "valid", "test")]
    file.write_text("\n".join([*lines, "tokenizer_type: ByteLevelTokenizer", "eval_iters: 1", "checkpoint_factor: 7"]))

    def config(name: str, *sets: str) -> Config:
        places = [f"save={tmp_path / name}", f"run_dir={tmp_path / name}", *sets]
        return resolve_run(Request([str(file)], places, gpus=1), os.environ).config

    whole = config("whole")
    per_epoch = whole.training.train_iters / 2
    assert per_epoch > 7.5
    run_ranks(trained, 1, [whole, config("resumed", f"load={tmp_path / 'whole'}", "iteration=7")])
    first, second = losses(tmp_path / "whole"), losses(tmp_path / "resumed")
    assert min(second) == 8 and len(first) == whole.training.train_iters
    assert second == {iteration: loss for iteration, loss in first.items() if iteration > 7}


#: GPT-NeoX's configurations for finetuning, and what has to be smaller besides the sizes of the model.
NEOX = {
    "_post-training/llama3-8b-sft.yml": ["num_kv_heads=2", "mlp_multiple_of=64", "intermediate_size=192"],
    "finetuning_configs/6-9B.yml": ["pack_impl=best_fit", "fp16.enabled=false", "fp16.fp16=false"],
}
SCALED = [
    "num_layers=2", "hidden_size=64", "num_attention_heads=4", "seq_length=32", "max_position_embeddings=32",
    'attention_config=[[["flash"], 2]]', "model_parallel_size=2", "train_micro_batch_size_per_gpu=4", "precision=fp32",
    "tokenizer_type=ByteLevelTokenizer", "train_iters=20", "lr_decay_iters=20", "optimizer.params.lr=0.003",
    "min_lr=0", "num_workers=0", "eval_iters=1",
]  # fmt: skip


@pytest.mark.timeout(300)
@needs_corpus
@pytest.mark.slow
def test_gpt_neox_s_finetuning_configurations_train(tmp_path: Path) -> None:
    """With everything but sizes, precision and learning rate as its authors set it."""
    words = ["attention", "layer", "gradient", "weight", "token", "batch", "stage", "rank"]
    documents = [list(f"{a}: {b} {a} {b}".encode()) for a in words for b in words]
    labels = [
        [IGNORED] * (document.index(ord(":")) + 2) + document[document.index(ord(":")) + 2 :] for document in documents
    ]
    text, label = pair(tmp_path, documents, labels)
    configs = []
    for name, more in NEOX.items():
        written = resolve([NEOX_HEAD / name], gpus=8)
        paths = [f"{split}_data_paths={text}" for split in ("train", "valid", "test")]
        paths += [f"{split}_label_data_paths={label}" for split in ("train", "valid", "test")]
        places = [f"{key}={tmp_path / Path(name).stem}" for key in ("save", "load", "run_dir")]
        off = ["bf16.enabled=false", "data_types.grad_accum_dtype=null"] if written.is_set("bf16.enabled") else []
        off += ["use_wandb=false"] if written.is_set("use_wandb") else []
        configs.append(resolve([NEOX_HEAD / name], [*SCALED, *more, *paths, *places, *off], gpus=4))
    run_ranks(trained, 4, configs, timeout=240)
    for name in NEOX:
        steps = list(losses(tmp_path / Path(name).stem).values())
        assert len(steps) == 20 and sum(steps[-5:]) / 5 < steps[0] - 1, name


def test_the_page_s_table_is_measured() -> None:
    """`python -m tests.support.finetuning_table` writes it."""
    rows = page_rows()
    models = [f"LoRA of {name}: three steps" for name in peft_models.CASES]
    assert [row.what for row in rows[:-1]] == [f"{name}: three steps" for name in parity.CASES] + models
    for row in rows[:-1]:
        assert all(float(number) < 1e-4 for number in re.findall(r"\d+e-\d+", row.difference)), row
    assert rows[-1].difference == "0 samples differ"
