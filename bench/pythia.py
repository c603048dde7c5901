"""Compare the loss curve of Pythia 14M in deepy with that in transformers, with the same weights and batches.

    python bench/pythia.py [--steps 200] [--svg pythia.svg]

The first curve is that of configs/models/pythia-14m.yml in DeepSpeed's engine, with deepy's optimizer and schedule. The
second is that of transformers' GPTNeoXForCausalLM with torch's AdamW and LambdaLR; only its initial weights come from
deepy. Shape and settings are the published ones, but a batch is 4 sequences of 128 bytes from the source of Python's
standard library, and the run is shorter. The losses may differ by at most 1 % at every step.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("DS_ACCELERATOR", "cpu")

from neoxargs.base.charts.line_chart import Chart, Series, standalone  # noqa: E402
from neoxargs.config.config import Config  # noqa: E402
from neoxargs.resolve import resolve  # noqa: E402
from neoxargs.targets.deepspeed import deepspeed_json  # noqa: E402

FILES = [
    ROOT / "configs" / name for name in ("models/pythia-14m.yml", "layouts/data-parallel.yml", "machines/laptop.yml")
]
SETS = ["seq_length=128", "train_batch_size=4", "checkpoint_activations=false"]
TOLERANCE = 0.01
#: Names of weights in transformers, without `gpt_neox.`, that differ from ours -> ours.
NAMES = {
    "embed_in.weight": "embedding.word_embeddings.weight",
    "lm_head.weight": "output.weight",
    "final_layer_norm.weight": "final_norm.weight",
    "final_layer_norm.bias": "final_norm.bias",
}
Batch = tuple[Tensor, Tensor]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="steps of both runs (default: %(default)s)")
    parser.add_argument("--svg", type=Path, help="write a plot of both curves to this file")
    options = parser.parse_args()
    print("  step     deepy   transformers   difference")
    rows = []
    for step, (ours, theirs) in enumerate(curves(options.steps), 1):
        rows.append((ours, theirs))
        if step % 20 == 0 or step == 1:
            print(f"{step:6}  {ours:8.4f}  {theirs:13.4f}  {abs(ours / theirs - 1):11.4%}", flush=True)
    worst = max(abs(ours / theirs - 1) for ours, theirs in rows)
    print(f"largest difference: {worst:.4%}; tolerance: {TOLERANCE:.0%}")
    if options.svg:
        draw(rows, options.svg)
    return int(worst > TOLERANCE)


def curves(steps: int, sets: Sequence[str] = ()) -> Iterator[tuple[float, float]]:
    """Yield the losses (deepy, transformers) of each step. sets: further overrides of the configuration."""
    from neoxargs.train.engine import build as engine
    from neoxargs.train.losses.cross_entropy import Vocabulary
    from neoxargs.train.micro_batch import MicroBatch
    from neoxargs.train.process import mesh, setup

    config = resolve(FILES, [*SETS, *sets, f"train_iters={steps}"], gpus=1)
    setup.start("gloo", config.training.seed)
    rows = config.embedding.padded_vocab_size
    trained = engine.build(config, deepspeed_json(config), Vocabulary(rows, rows), mesh.build_mesh(config))
    theirs = TransformersTraining(config, trained.deepspeed.module)
    for batch in batches(config, steps):
        yield trained.train_step(iter([MicroBatch(*batch)])).loss, theirs.step(batch)
    mesh.destroy_groups()
    setup.stop()


class TransformersTraining:
    """transformers' model with torch's optimizer and schedule, set up from the configuration."""

    def __init__(self, config: Config, ours: nn.Module) -> None:
        self.clip = config.gradients.gradient_clipping
        self.model = _model(config)
        weights = dict(ours.named_parameters())
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                name = name.removeprefix("gpt_neox.")
                parameter.copy_(weights[NAMES.get(name, name)])
        options, params = config.schedule, config.optimizer_params
        # As in GPT-NeoX, biases and norms have no weight decay.
        matrices = [parameter for parameter in self.model.parameters() if parameter.ndim > 1]
        others = [parameter for parameter in self.model.parameters() if parameter.ndim == 1]
        groups = [
            {"params": matrices, "weight_decay": config.regularization.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=params.lr, betas=tuple(params.betas), eps=params.eps)
        warmup, last, lowest = (
            options.warmup * options.lr_decay_iters,
            options.lr_decay_iters,
            options.min_lr / params.lr,
        )

        # GPT-NeoX's formulas (neoxargs/facts/lr_schedule.py).
        first = 0 if options.warmup_from_zero else 1

        def factor(step: int) -> float:
            if step < warmup:
                return min(max(step, first) / warmup, 1.0)
            return lowest + (1 - lowest) * (1 + math.cos(math.pi * (step - warmup) / (last - warmup))) / 2

        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, factor)

    def step(self, batch: Batch) -> float:
        """Take one step, and return the loss before it."""
        tokens, labels = batch
        logits = self.model(tokens).logits
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        self.schedule.step()
        return float(loss.detach())


def _model(config: Config) -> Any:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    shape, embedding = config.shape, config.embedding
    rotary = {"rope_type": "default", "rope_theta": float(embedding.rotary_emb_base)}
    settings = GPTNeoXConfig(
        vocab_size=embedding.padded_vocab_size, hidden_size=shape.hidden_size, num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_attention_heads, intermediate_size=shape.intermediate_size,
        max_position_embeddings=shape.seq_length, use_parallel_residual=config.attention.gpt_j_residual,
        rope_parameters={**rotary, "partial_rotary_factor": embedding.rotary_pct}, tie_word_embeddings=False,
        hidden_act="gelu_new", layer_norm_eps=config.norm.layernorm_epsilon, use_cache=False, attention_dropout=0.0,
        hidden_dropout=0.0,
    )  # fmt: skip
    return GPTNeoXForCausalLM(settings).train()


def batches(config: Config, steps: int) -> Iterator[Batch]:
    """Yield (tokens, labels) of random windows of the Python library's source, one token per byte."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = torch.frombuffer(bytearray(b"".join(path.read_bytes() for path in files)), dtype=torch.uint8).long()
    length, generator = config.shape.seq_length, random.Random(1)
    for _ in range(steps):
        starts = [generator.randrange(len(text) - length) for _ in range(config.batch.train_batch_size)]
        samples = torch.stack([text[start : start + length + 1] for start in starts])
        yield samples[:, :-1], samples[:, 1:].contiguous()


def draw(rows: Sequence[tuple[float, float]], path: Path) -> None:
    curves = [
        Series(name, colour, list(enumerate(losses, 1)))
        for losses, name, colour in zip(
            zip(*rows, strict=True), ("deepy", "transformers"), ("train", "validation"), strict=True
        )
    ]
    chart = Chart("Pythia 14M: same weights, same batches", "nats per byte", curves, floats=True)
    path.write_text(standalone(chart), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
