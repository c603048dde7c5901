"""Small runs that train a part of a frozen model, from its checkpoint: started, saved, resumed and sampled from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from torch import Tensor

from neoxargs.config.config import Config
from neoxargs.resolve import resolve
from neoxargs.targets.wire_format import parse_rank_arguments, script_arguments
from neoxargs.train import generate, run
from neoxargs.train.checkpoint import inventory
from neoxargs.train.checkpoint.weights_by_name import SavedWeights
from neoxargs.train.process import setup
from tests.support.finetuning import token_file
from tests.support.ranks import run_ranks

YAML = """\
num_layers: 2
hidden_size: 32
num_attention_heads: 4
seq_length: 16
max_position_embeddings: 16
pos_emb: rotary
tokenizer_type: ByteLevelTokenizer
padded_vocab_size: 320
train_batch_size: 4
train_micro_batch_size_per_gpu: 2
lr: 0.05
lr_decay_style: constant
warmup: 0
hidden_dropout: 0
attention_dropout: 0
checkpoint_factor: 2
eval_iters: 1
eval_interval: 100
num_workers: 0
precision: fp32
dialect: neox-2026
maximum_tokens: 4
temperature: 0
top_k: 0
top_p: 0
"""


def configured(folder: Path, text: str, tensor: int = 1, pipe: int = 0, gpus: int = 0, **values: object) -> Config:
    """Resolve YAML and `text`. gpus: the number of ranks, if there are replicas."""
    file = folder / "my.yml"
    file.write_text(YAML + text)
    sizes = {"model_parallel_size": tensor, "pipe_parallel_size": pipe, "data_path": folder / "text"}
    given = {**sizes, "run_dir": values.get("save", folder / "runs"), **values}
    ranks = gpus or tensor * max(pipe, 1)
    return resolve([file], [f"{name}={value}" for name, value in given.items()], gpus=ranks)


def trained(configs: list[Config]) -> None:
    """Train one run after the other, on this rank."""
    with patch.object(setup, "stop"):
        for config in configs:
            run.run(parse_rank_arguments(script_arguments(config)))


def generated(config: Config) -> None:
    """Generate, on this rank."""
    with patch.object(setup, "stop"):
        generate.run(parse_rank_arguments(script_arguments(config)))


def saved(folder: Path) -> dict[str, Tensor]:
    """Return the weights in a checkpoint, by name."""
    found = SavedWeights(folder, inventory.read(folder))
    return {name: found.full_tensor(name).clone() for name in found.slices}


def losses(folder: Path) -> list[float]:
    """Return the losses that a run has recorded."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if row["event"] == "step"]


def trained_base(folder: Path) -> Path:
    """Write text to a folder, and train a model for two steps; its checkpoint is in `base`."""
    token_file(folder / "text", [list(b"some words to learn " * 40)] * 20, np.uint16)
    run_ranks(trained, 1, [configured(folder, "", train_iters=2, save=folder / "base")])
    return folder


def prompted(base: Path, folder: Path, text: str, load: Path, prompt: str) -> str:
    """Return what is generated after a prompt."""
    output = folder / "samples.jsonl"
    given: dict[str, Any] = {"load": load, "text_gen_type": "unconditional", "prompt": prompt,
                             "sample_output_file": output}  # fmt: skip
    run_ranks(generated, 1, configured(base, text, train_iters=1, **given))
    [line] = output.read_text().splitlines()
    return str(json.loads(line)["text"])
