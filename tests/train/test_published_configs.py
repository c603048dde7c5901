"""Published models train: the shipped configurations and GPT-NeoX's own, made small by nothing but `--set`."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from neoxargs.config.config import Config
from neoxargs.files.token_files import writer as indexed
from neoxargs.resolve import resolve
from neoxargs.targets.wire_format import parse_rank_arguments, script_arguments
from neoxargs.train.engine import build as engine
from neoxargs.train.losses.cross_entropy import Vocabulary
from neoxargs.train.micro_batch import MicroBatch
from neoxargs.train.process import mesh, setup
from neoxargs.train.process.mesh import Mesh
from tests.support.frozen_runs import losses as losses_of
from tests.support.frozen_runs import trained
from tests.support.paths import CONFIGS, NEOX_HEAD, needs_corpus
from tests.support.ranks import run_ranks

MODELS, LAYOUTS = (sorted(path.stem for path in (CONFIGS / folder).glob("*.yml")) for folder in ("models", "layouts"))
SMALL = [
    "num_layers=4", "hidden_size=32", "num_attention_heads=4", "seq_length=16", "padded_vocab_size=512",
    "train_batch_size=8", "train_micro_batch_size_per_gpu=1", "warmup=0",
]  # fmt: skip
#: Only where the model says otherwise than what follows from the others.
WHERE_WRITTEN = {"intermediate_size": 192, "num_kv_heads": 2, "sliding_window_width": 7}
#: Layouts of more than four ranks, on four: tensor parallel ranks and stages.
FEWER = {"tp8": (2, 0), "tp8-pp4": (2, 2), "tp8-pp8": (1, 4)}


def shipped(model: str, layout: str, sets: Sequence[str] = (), gpus: int = 1) -> Config:
    files = [CONFIGS / folder / f"{name}.yml" for folder, name in
             (("models", model), ("layouts", layout), ("machines", "laptop"))]  # fmt: skip
    written = resolve(files, gpus=64)
    more = [f"{name}={value}" for name, value in WHERE_WRITTEN.items() if written.is_set(name)]
    return resolve(files, [*SMALL, *more, *sets], gpus=gpus)


def batches(config: Config, here: Mesh) -> Iterator[MicroBatch]:
    """This rank's share of the same samples on every layout, over and over."""
    generator = torch.Generator().manual_seed(1)
    shape, sizes, data = config.shape, config.batch, here.data
    text = torch.randint(257, (sizes.train_batch_size, shape.seq_length + 1), generator=generator)
    mine = text.view(-1, data.size, sizes.train_micro_batch_size_per_gpu, shape.seq_length + 1)[:, data.rank]
    return itertools.cycle(MicroBatch(part[:, :-1], part[:, 1:]) for part in mine)


def losses(configs: dict[str, Config], steps: int) -> dict[str, list[float]]:
    """Of each configuration, one after the other on these ranks."""
    process = setup.start("gloo", seed=1)
    assert process.device.type == "cpu"
    found = {}
    for name, config in configs.items():
        here = mesh.build_mesh(config)
        arguments = parse_rank_arguments(script_arguments(config))
        built = engine.build(arguments.config, arguments.deepspeed, Vocabulary(257, 512), here)
        samples = batches(config, here) if built.reads_data else None
        found[name] = [built.train_step(samples).loss for _ in range(steps)]
        mesh.destroy_groups()
    return found


@pytest.mark.slow
def test_every_shipped_model_trains() -> None:
    [found] = run_ranks(losses, 1, {name: shipped(name, "data-parallel") for name in MODELS}, 2)
    for name, (first, second) in found.items():
        assert second < first, name
        assert first == pytest.approx(5.55, abs=0.3), name  # the logarithm of 257 tokens, and what fresh weights add


@pytest.mark.slow
def test_every_shipped_layout_trains_the_same_model() -> None:
    """And DeepSpeed can time all of them."""
    configs = {}
    for name in LAYOUTS:
        sizes = zip(("model_parallel_size", "pipe_parallel_size"), FEWER.get(name, ()), strict=False)
        sets = ["wall_clock_breakdown=true", *(f"{key}={size}" for key, size in sizes)]
        configs[name] = shipped("llama-2-70b", name, sets, gpus=4)
    for found in run_ranks(losses, 4, configs, 3, timeout=240):
        expected = found.pop("data-parallel")
        assert expected[2] < expected[0]
        for name, values in found.items():
            assert values == pytest.approx(expected, rel=1e-4), name


def against_transformers() -> list[tuple[float, float]]:
    """bench/pythia.py, shorter and smaller: losses of ours and of transformers with torch's AdamW."""
    sys.path.append(str(CONFIGS.parent / "bench"))
    from pythia import curves

    with patch.object(setup, "stop"):
        return list(curves(20, ["num_layers=2", "padded_vocab_size=512"]))


@pytest.mark.slow
def test_the_curve_is_the_one_of_plain_transformers() -> None:
    """Pythia's every other setting as published: warm-up, cosine, clipping, weight decay."""
    pytest.importorskip("transformers")
    [rows] = run_ranks(against_transformers, 1)
    assert len(rows) == 20
    assert rows[-1][0] < rows[0][0] - 0.5
    for ours, theirs in rows:
        assert ours == pytest.approx(theirs, rel=1e-3)


#: GPT-NeoX's files as its authors combine them.
COMBINED = {
    "125M": ["125M.yml", "local_setup.yml"],
    "125M-dmoe": ["125M-dmoe.yml", "local_setup.yml"],
    "1.3B-Transformer-Engine": ["1-3B-transformer-engine.yml", "local_setup.yml"],
    "Pythia-70M": ["pythia/70M.yml", "local_setup.yml"],
    "LLaMA-2-7B": ["llama2/7B.yml", "llama/train_config.yml", "local_setup.yml"],
}
#: The keys for experts of GPT-NeoX's files of March 2024, and of DeepSpeed's and MegaBlocks' experts after May 2024;
#: 125M.yml is the rest of all of these files. The last ones divide the experts among two data parallel ranks.
PLAIN = {"pipe_parallel_size": 0, "model_parallel_size": 1}
EXPERTS: dict[str, dict[str, Any]] = {
    "experts, March 2024": {"num_experts": 4, "moe_expert_parallel_size": 1},
    "experts of DeepSpeed": PLAIN | {
        "moe_num_experts": 4, "moe_type": "deepspeed", "moe_top_k": 2, "moe_token_dropping": True,
        "moe_expert_parallel_size": 2, "moe_loss_coeff": 0.1,
    },
    "experts of MegaBlocks": PLAIN | {
        "moe_num_experts": 4, "moe_type": "megablocks", "enable_expert_tensor_parallelism": True,
        "moe_expert_parallel_size": 2, "model_parallel_size": 2, "moe_jitter_eps": 0.01,
    },
}  # fmt: skip
#: Sizes, text and layout; and CPUs do not compute in fp16, nor may a test's processes start others.
SCALED = [
    "num_layers=4", "hidden_size=64", "num_attention_heads=4", "seq_length=32", "train_micro_batch_size_per_gpu=4",
    "tokenizer_type=ByteLevelTokenizer", "pipe_parallel_size=2", "model_parallel_size=2", "train_iters=20",
    "lr_decay_iters=20", "precision=fp32", "fp16.enabled=false", "num_workers=0",
]  # fmt: skip
#: Again only where it is written: eight times the hidden size as there, and one kind of attention for each layer.
SCALED_WHERE_WRITTEN = {"intermediate_size": 512, "attention_config": '[[["flash"], "all"]]'}


def text(folder: Path) -> Path:
    """A token file of 200 documents of words, drawn alike every time."""
    prefix, draw = folder / "text", np.random.default_rng(1)
    words = ["attention", "layer", "gradient", "weight", "token", "batch", "stage", "rank", "loss", "step"]
    with indexed.new_file(prefix, np.uint16) as writer:
        for _ in range(200):
            ids = np.frombuffer(" ".join(draw.choice(words, 100)).encode(), np.uint8).astype(np.uint16)
            writer.add(ids, [len(ids)], [True])
    return prefix


def scaled(name: str, folder: Path, data: Path) -> Config:
    paths = [NEOX_HEAD / file for file in COMBINED.get(name, COMBINED["125M"])]
    places = [f"{key}={folder / name}" for key in ("save", "load", "run_dir", "log_dir", "tensorboard_dir")]
    written = resolve(paths, gpus=8)
    more = [f"{key}={value}" for key, value in SCALED_WHERE_WRITTEN.items() if written.is_set(key)]
    of_experts = [f"{key}={value}" for key, value in EXPERTS.get(name, {}).items()]
    keys = {override.split("=")[0] for override in of_experts}
    sizes = [override for override in [*SCALED, *more] if override.split("=")[0] not in keys]
    return resolve(paths, [*sizes, *of_experts, *places, f"data_path={data}"], gpus=4)


@pytest.mark.timeout(560)
@needs_corpus
@pytest.mark.slow
def test_gpt_neox_s_own_configurations_train(tmp_path: Path) -> None:
    data = text(tmp_path)
    names = [*COMBINED, *EXPERTS]
    run_ranks(trained, 4, [scaled(name, tmp_path, data) for name in names], timeout=500)
    for name in names:
        steps = losses_of(tmp_path / name)
        assert len(steps) == 20, name
        assert sum(steps[-5:]) / 5 < steps[0] - 0.5, name
        assert (tmp_path / name / "global_step20").is_dir(), name


def losses_alone(file: str, kind: str, folder: Path, steps: int = 20, sets: Sequence[str] = ()) -> list[float]:
    """Train a file of a recurrent model on one rank, as published in everything but size, and return the losses."""
    sizes = [item for item in SCALED if item.split("=")[0].startswith(("num_", "hidden", "seq", "train_micro", "tok"))]
    sizes += [f"train_iters={steps}", f"lr_decay_iters={steps}"]
    places = [f"data_path={text(folder)}", f"run_dir={folder}", "distributed_backend=gloo"]
    layers = f"attention_config={SCALED_WHERE_WRITTEN['attention_config'].replace('flash', kind)}"
    config = resolve([NEOX_HEAD / file], [*sizes, *places, layers, *sets], gpus=1)
    run_ranks(trained, 1, [config], timeout=500)
    return losses_of(folder)


@pytest.mark.timeout(560)
@needs_corpus
@pytest.mark.slow
def test_gpt_neox_s_rwkv_trains(tmp_path: Path) -> None:
    """As published in everything but size: bf16, ZeRO-1, recomputed layers, one pipeline stage, no `dim_att`."""
    losses = losses_alone("rwkv/170M.yml", "rwkv", tmp_path)
    assert len(losses) == 20
    assert sum(losses[-5:]) / 5 < losses[0] - 0.5


@pytest.mark.timeout(560)
@needs_corpus
@pytest.mark.slow
@pytest.mark.parametrize("size", ["130M", "370M", "790M", "1.4B", "2.8B"])
def test_gpt_neox_s_mamba_trains(size: str, tmp_path: Path) -> None:
    """Everything but size, also ZeRO-1 and recomputed layers; but fp32, as CPUs do not compute in fp16. The learning
    rates of the large files are small, so there are more steps."""
    sets = ["precision=fp32", "fp16.enabled=false"]
    losses = losses_alone(f"mamba/mamba-{size}.yml", "mamba", tmp_path, 80, sets)
    assert len(losses) == 80
    assert sum(losses[-5:]) / 5 < losses[0] - 0.5
