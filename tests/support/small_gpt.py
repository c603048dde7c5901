"""A small GPT for tests: its configuration, and its weights by name whatever the layout."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from neoxargs.resolve.config import Config
from neoxargs.resolve.value import DEFAULT, Value
from neoxargs.train.kernels.cross_entropy import Loss, Vocabulary
from neoxargs.train.model.gpt import GPT
from neoxargs.train.parallel.make import Make
from neoxargs.train.parallel.pipeline import layers
from neoxargs.train.process.mesh import Axis, build_mesh

SMALL: dict[str, Any] = {
    "num_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "num_kv_heads": 4, "intermediate_size": 128,
    "seq_length": 16, "max_position_embeddings": 16, "attention_dropout": 0.0, "hidden_dropout": 0.0,
    "model_parallel_size": 1, "pipe_parallel_size": 0,
}  # fmt: skip
#: 61 tokens, so that rows 61 to 63 pad, all of them on the last tensor parallel rank; token 5 ends documents.
VOCABULARY = Vocabulary(61, 64, eod=5)


def small(**changes: Any) -> Config:
    return Config({name: Value(value, DEFAULT) for name, value in (SMALL | changes).items()})


def build(config: Config, seed: int = 1234) -> nn.Module:
    """This rank's part of the GPT: for a pipeline a PipelineModule, else a GPT."""
    here = build_mesh(config.parallel)
    make = Make(seed, here.tensor, sequence_parallel=config.parallel.sequence_parallel)
    if config.parallel.pipe_parallel_size == 0:
        return GPT(config, VOCABULARY, make)
    from deepspeed.pipe import PipelineModule
    from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

    from neoxargs.train.process.setup import init_distributed

    init_distributed("gloo")
    topology = PipeModelDataParallelTopology(here.pipe.size, here.tensor.size, here.data.size)
    loss = Loss.of(config, VOCABULARY, make)
    module: nn.Module = PipelineModule(
        layers(config, VOCABULARY, make), topology=topology, loss_fn=loss, partition_method="type:transformer"
    )
    return module


def batch(samples: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Tokens and labels (samples, seq)."""
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(VOCABULARY.size, (samples, SMALL["seq_length"] + 1), generator=generator)
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def shaken(model: nn.Module) -> nn.Module:
    """The same module with random weights everywhere: fresh biases are 0 and norms 1, which would hide mistakes."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3).add_(parameter.ndim == 1)
    return model


def named(module: nn.Module) -> dict[str, nn.Parameter]:
    """This rank's parameters under the names that GPT gives them."""
    parameters = dict(module.named_parameters())
    return parameters if isinstance(module, GPT) else {_in_gpt(name, module): p for name, p in parameters.items()}


def _in_gpt(name: str, pipeline: Any) -> str:
    """`3.mlp.dense_h_to_4h.weight` of a PipelineModule is `layers.1.mlp.dense_h_to_4h.weight` of a GPT."""
    first, _, rest = name.partition(".")
    if first == "tied_modules":
        return rest.replace("layers-", "layers.")
    last = len(pipeline._layer_specs) - 1
    place = {1: "positions", last - 1: "final_norm", last: "output"}
    if int(first) == 0:
        return f"embedding.{rest}"
    return f"{place.get(int(first), f'layers.{int(first) - 2}')}.{rest.removeprefix('norm.')}"


def load(module: nn.Module, whole: dict[str, Tensor], axis: Axis) -> None:
    """Fill this rank's parameters with their slices of whole ones."""
    with torch.no_grad():
        for name, parameter in named(module).items():
            parameter.copy_(_slice(whole[name], parameter.shape, axis))


def _slice(whole: Tensor, shape: torch.Size, axis: Axis) -> Tensor:
    for dimension, (mine, all_ranks) in enumerate(zip(shape, whole.shape, strict=True)):
        if mine != all_ranks:
            return whole.chunk(axis.size, dimension)[axis.rank]
    return whole


def join(ranks: list[dict[str, Tensor]], whole: dict[str, Tensor]) -> dict[str, Tensor]:
    """What the ranks of one model (tensor parallel ones next to each other) hold, put together.

    What several ranks hold alike must be equal. whole: says each tensor's full shape.
    """
    found: dict[str, Tensor] = {}
    for name, like in whole.items():
        pieces = [rank[name] for rank in ranks if name in rank]
        split = [d for d, (a, b) in enumerate(zip(pieces[0].shape, like.shape, strict=True)) if a != b]
        if split:
            count = like.shape[split[0]] // pieces[0].shape[split[0]]
            pieces = [torch.cat(pieces[i : i + count], split[0]) for i in range(0, len(pieces), count)]
        for piece in pieces[1:]:
            torch.testing.assert_close(piece, pieces[0], msg=partial("{}: {}".format, name))
        found[name] = pieces[0]
    return found
