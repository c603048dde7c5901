"""A soft prompt from its first step to generated text: started from text, saved, resumed, with every layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor

from neoxargs.launch.targets.wire_format import parse_rank_arguments, script_arguments
from neoxargs.resolve import resolve
from neoxargs.resolve.config import Config
from neoxargs.train import generate, run
from neoxargs.train.checkpoint import inventory
from neoxargs.train.checkpoint.weights_by_name import SavedWeights
from neoxargs.train.data import indexed
from neoxargs.train.process import setup
from neoxargs.train.soft_prompt.prompt import NAME
from tests.support.ranks import run_ranks

YAML = """\
num_layers: 2
hidden_size: 32
num_attention_heads: 4
seq_length: 16
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
TEXT = "a b"
PROMPT = f"soft_prompt_tuning: {{enabled: true, num_tokens: 5, init_string: {TEXT}}}\n"
LAYOUTS = {"one": (1, 0), "tp2": (2, 0), "pp2": (1, 2)}


def configured(folder: Path, text: str, tensor: int = 1, pipe: int = 0, **values: object) -> Config:
    file = folder / "my.yml"
    file.write_text(YAML + text)
    sizes = {"model_parallel_size": tensor, "pipe_parallel_size": pipe, "data_path": folder / "text"}
    given = {**sizes, "run_dir": values.get("save", folder / "runs"), **values}
    return resolve([file], [f"{name}={value}" for name, value in given.items()], gpus=tensor * max(pipe, 1))


def trained(configs: list[Config]) -> None:
    with patch.object(setup, "stop"):
        for config in configs:
            run.run(parse_rank_arguments(script_arguments(config)))


def generated(config: Config) -> None:
    with patch.object(setup, "stop"):
        generate.run(parse_rank_arguments(script_arguments(config)))


def saved(folder: Path) -> dict[str, Tensor]:
    found = SavedWeights(folder, inventory.read(folder))
    return {name: found.full_tensor(name).clone() for name in found.slices}


def losses(folder: Path) -> list[float]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if row["event"] == "step"]


def token_file(folder: Path) -> None:
    writer, ids = indexed.Writer(folder / "text", np.uint16), np.frombuffer(b"some words to learn " * 40, np.uint8)
    for _ in range(20):
        writer.add(ids.astype(np.uint16), [len(ids)], [True])
    writer.finish()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with text and with a model that was trained for two steps."""
    folder = tmp_path_factory.mktemp("base")
    token_file(folder)
    run_ranks(trained, 1, [configured(folder, "", train_iters=2, save=folder / "base")])
    return folder


def of_layout(base: Path, name: str, folder: Path) -> tuple[list[float], list[float], dict[str, Tensor]]:
    """Return the losses of six steps, those with a restart after four, and the weights at the end."""
    tensor, pipe = LAYOUTS[name]
    start: dict[str, Any] = {"load": base / "base", "finetune": "true"}
    whole = configured(base, PROMPT, tensor, pipe, train_iters=6, save=folder / "whole", **start)
    first = configured(base, PROMPT, tensor, pipe, train_iters=4, save=folder / "parts", **start)
    second = configured(base, PROMPT, tensor, pipe, train_iters=6, save=folder / "parts", load=folder / "parts")
    run_ranks(trained, tensor * max(pipe, 1), [whole, first, second], timeout=240)
    return losses(folder / "whole"), losses(folder / "parts"), saved(folder / "parts" / "global_step6")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_every_layout_trains_saves_and_resumes_it(base: Path, tmp_path: Path) -> None:
    [whole, parts, weights] = of_layout(base, "one", tmp_path / "one")
    assert whole[-1] < whole[0]
    for name in LAYOUTS:
        ours = (whole, parts, weights) if name == "one" else of_layout(base, name, tmp_path / name)
        assert ours[0] == pytest.approx(whole, rel=1e-5), name
        assert ours[1] == pytest.approx(ours[0], rel=1e-6), name
        assert set(ours[2]) == {NAME}
        torch.testing.assert_close(ours[2][NAME], weights[NAME], rtol=1e-4, atol=1e-5)


def test_it_starts_from_the_text_and_is_used_by_generate(base: Path, tmp_path: Path) -> None:
    """With a learning rate of almost 0, it stays where it starts."""
    start: dict[str, Any] = {"load": base / "base", "finetune": "true", "lr": 1e-12}
    [_] = run_ranks(trained, 1, [configured(base, PROMPT, train_iters=1, save=tmp_path / "soft", **start)])
    weights = saved(tmp_path / "soft" / "global_step1")
    ids = [*TEXT.encode(), *TEXT.encode()][:5]
    assert set(weights) == {NAME}
    expected = saved(base / "base" / "global_step2")["embedding.word_embeddings.weight"][ids]
    torch.testing.assert_close(weights[NAME], expected, rtol=0, atol=1e-6)
    plain = prompted(base, tmp_path, "", base / "base", (TEXT * 2)[:5] + "xyz")
    assert prompted(base, tmp_path, PROMPT, tmp_path / "soft", "xyz") == plain


def prompted(base: Path, folder: Path, text: str, load: Path, prompt: str) -> str:
    """Return what is generated after a prompt."""
    output = folder / "samples.jsonl"
    given = {"load": load, "text_gen_type": "unconditional", "prompt": prompt, "sample_output_file": output}
    run_ranks(generated, 1, configured(base, text, train_iters=1, **given))
    [line] = output.read_text().splitlines()
    return str(json.loads(line)["text"])
