"""What the runs on preferences have in common: settings, layouts and what a run has measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from neoxargs.config.config import Config
from neoxargs.files import metrics as run_metrics
from neoxargs.resolve import resolve
from tests.support.frozen_runs import losses, saved, trained
from tests.support.huggingface import descent, imported, made
from tests.support.paths import NEOX_HEAD
from tests.support.preference import RATE
from tests.support.ranks import run_ranks

#: Pairs, or rated answers, of a batch.
PAIRS = 8
#: What the configuration says about two ranks.
LAYOUTS: dict[str, dict[str, Any]] = {
    "dp2": {},
    "tp2": {"model_parallel_size": 2},
    "tp2, sequence parallel": {"model_parallel_size": 2, "sequence_parallel": "true"},
    "pp2": {"pipe_parallel_size": 2},
    "cp2": {"context_parallel_size": 2},
    "cp2, ring": {"context_parallel_size": 2, "context_parallel_style": "ring"},
    "ZeRO-3": {"zero_optimization.stage": 3},
}
DESCENT = descent(RATE, train_batch_size=PAIRS, train_iters=3, eval_iters=1, finetune="true")
#: GPT-NeoX's own configurations, made small.
SCALED = [
    "num_layers=2", "hidden_size=64", "num_attention_heads=4", "seq_length=16", "max_position_embeddings=16",
    'attention_config=[[["flash"], 2]]', "model_parallel_size=2", "train_micro_batch_size_per_gpu=4", "precision=fp32",
    "gradient_accumulation_steps=1", "tokenizer_type=ByteLevelTokenizer", "train_iters=12", "lr_decay_iters=12",
    "optimizer.params.lr=0.003", "min_lr=0", "num_workers=0", "eval_iters=1", "use_wandb=false", "bf16.enabled=false",
    "data_types.grad_accum_dtype=null", "load=null", "finetune=false",
]  # fmt: skip


def llama(folder: Path) -> tuple[Any, Path]:
    """Return a Llama of transformers with random weights, and the folder to which it is imported."""
    pytest.importorskip("transformers")
    model = made("Llama")
    return model, imported(folder, model)


def on_every_layout(folder: Path, ours: Path, expected: list[float], **values: Any) -> dict[str, float]:
    """Train three steps of all data of the folder on every layout, and compare; return what the validation measured.

    ours: the model to start from. expected: the losses of the steps.
    """

    def of(name: str, ranks: int = 1, **more: Any) -> Config:
        given = {**DESCENT, "load": ours, "run_dir": folder / name, **values, **more}
        return resolve([ours / "model.yml"], [f"{key}={value}" for key, value in given.items()], gpus=ranks)

    run_ranks(trained, 1, [of("one process")])
    run_ranks(trained, 2, [of(name, 2, **sizes) for name, sizes in LAYOUTS.items()], timeout=300)
    alone = held_out(folder / "one process")
    for name in ("one process", *LAYOUTS):
        assert losses(folder / name) == pytest.approx(expected, abs=3e-6), name
        found = held_out(folder / name)
        # Margins and rewards are differences of sums of log-probabilities near 100, each rounded by up to 2e-6 of it.
        assert found == pytest.approx(alone, rel=2e-6, abs=2e-4), name
        assert found["loss"] == pytest.approx(alone["loss"], rel=2e-6, abs=3e-6), name
    assert expected[2] < expected[0] - 0.01
    return alone


def of_gpt_neox(folder: Path, name: str, data: dict[str, Path], *more: str, heads: int = 2) -> Config:
    """Return a configuration of GPT-NeoX's on two ranks, with everything but sizes and rates as its authors set it."""
    sets = [*SCALED, *(f"{key}={value}" for key, value in data.items()), f"num_kv_heads={heads}",
            "mlp_multiple_of=64", "intermediate_size=192", *more, f"save={folder}", f"run_dir={folder}"]  # fmt: skip
    return resolve([NEOX_HEAD / "_post-training" / name], sets, gpus=2)


def held_out(folder: Path) -> dict[str, float]:
    """Return the loss and the measures of the last validation of a run."""
    row = [row for row in run_metrics.read(folder / run_metrics.FILE) if row.get("split") == "validation"][-1]
    return {name: value for name, value in row.items() if name == "loss" or name.startswith("validation/")}


def resumed_equals_whole(run: Callable[..., Config], base: Path, folder: Path) -> list[Path]:
    """Train four steps, in one run (`whole`) and in two (`parts`); return the checkpoints of both after the last step.

    run: makes a configuration from `save`, the number of iterations and other values. base: the model to start from.
    """
    start = {"load": base, "finetune": "true", "eval_iters": 0}
    parts = folder / "parts"
    configs = [run(folder / "whole", 4, **start), run(parts, 2, **start), run(parts, 4, eval_iters=0, load=parts)]
    run_ranks(trained, 1, configs)
    assert losses(parts) == losses(folder / "whole")
    ends = [folder / name / "global_step4" for name in ("whole", "parts")]
    one, other = map(saved, ends)
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    return ends
