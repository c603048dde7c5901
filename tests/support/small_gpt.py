"""A small GPT for tests: its configuration, and its weights by the same names on every layout."""

from __future__ import annotations

from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor, nn

from neoxargs.config.config import Config
from neoxargs.config.value import DEFAULT, Value
from neoxargs.train.deepspeed.weight_names import named_weights
from neoxargs.train.losses.cross_entropy import Vocabulary
from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.shared import Shared
from neoxargs.train.parallel.layers import Ranks, Weights, rank_slice, shards_of
from neoxargs.train.process.mesh import build_mesh
from neoxargs.train.process.setup import init_distributed

SMALL: dict[str, Any] = {
    "num_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "num_kv_heads": 4, "intermediate_size": 128,
    "seq_length": 16, "max_position_embeddings": 16, "attention_dropout": 0.0, "hidden_dropout": 0.0,
    "model_parallel_size": 1, "pipe_parallel_size": 0,
}  # fmt: skip
#: 61 tokens and 64 rows: rows 61 to 63 are padding, all on the last tensor parallel rank. Token 5 ends documents.
VOCABULARY = Vocabulary(61, 64, eod=5)


def small(**changes: Any) -> Config:
    return Config({name: Value(value, DEFAULT) for name, value in (SMALL | changes).items()})


def build(config: Config, seed: int = 1234) -> nn.Module:
    """Return this rank's part of the GPT: a PipelineModule for the pipeline engine, else a GPT."""
    mesh = build_mesh(config)
    weights = Weights(seed, Ranks(mesh.tensor, sequence_parallel=config.parallel.sequence_parallel))
    if config.parallel.pipe_parallel_size == 0:
        return GPT(config, VOCABULARY, weights, Shared())
    from neoxargs.train.engine.pipeline import pipeline

    init_distributed("gloo")
    module: nn.Module = pipeline(config, VOCABULARY, weights, Shared(), mesh)
    return module


def batch(samples: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return random tokens and labels, each (samples, seq)."""
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(VOCABULARY.size, (samples, SMALL["seq_length"] + 1), generator=generator)
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def randomised(model: nn.Module) -> nn.Module:
    """Fill all weights with random numbers, because initial biases of 0 and norms of 1 would hide mistakes."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3).add_(parameter.ndim == 1)
    return model


def own_shard(full: Tensor, weight: nn.Parameter) -> Tensor:
    """Return what this rank has of a full tensor of this weight."""
    return reduce(rank_slice, shards_of(weight), full)


def load_shards(module: nn.Module, full: dict[str, Tensor]) -> None:
    """Fill this rank's parameters with their shards of the full tensors."""
    with torch.no_grad():
        for name, weight in named_weights(module).items():
            weight.copy_(own_shard(full[name], weight))


def join_shards(ranks: list[dict[str, Tensor]], templates: dict[str, Tensor]) -> dict[str, Tensor]:
    """Concatenate the shards of one replica's ranks (tensor parallel ones consecutive), by name.

    Fails if replicated tensors differ. templates: tensors of the full shapes.
    """
    joined: dict[str, Tensor] = {}
    for name, like in templates.items():
        pieces = [rank[name] for rank in ranks if name in rank]
        split = [d for d, (a, b) in enumerate(zip(pieces[0].shape, like.shape, strict=True)) if a != b]
        if split:
            count = like.shape[split[0]] // pieces[0].shape[split[0]]
            pieces = [torch.cat(pieces[i : i + count], split[0]) for i in range(0, len(pieces), count)]
        for piece in pieces[1:]:
            torch.testing.assert_close(piece, pieces[0], msg=partial("{}: {}".format, name))
        joined[name] = pieces[0]
    return joined
