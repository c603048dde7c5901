"""The parts of the GPT in the order in which they run: the plain engine has all of them, a pipeline stage some."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from neoxargs.base.record import Record
from neoxargs.config.config import Config
from neoxargs.facts.layer_kinds import has_attention
from neoxargs.facts.model import REWARD_HEAD, is_reward_model, weights_of_layers
from neoxargs.train.losses.cross_entropy import Vocabulary
from neoxargs.train.model.bias import RelativeBias
from neoxargs.train.model.blocks.table import block_class
from neoxargs.train.model.embedding import PositionEmbedding, TokenEmbedding
from neoxargs.train.model.norm import norm
from neoxargs.train.model.output import OutputLayer, RewardHead
from neoxargs.train.model.shared import Shared
from neoxargs.train.parallel.layers import Weights

#: Names of parts, and the prefix of those of layers, `layers.0` and so on.
EMBEDDING, POSITIONS, RELATIVE, FINAL_NORM, OUTPUT = "embedding", "positions", "relative", "final_norm", "output"
LAYERS = "layers"


class Part(Record):
    """A module of the model."""

    name: str
    """Prefix of the names of its weights, in every engine. Parts of one name are one module, which runs repeatedly."""
    build: partial[Any]
    """Returns the module; it is called with the module of `tied_to` or, if it `reads_bias`, of `RELATIVE`."""
    tied_to: str = ""
    """Name of an earlier part whose weight it uses too."""
    reads_bias: bool = False
    """Whether its attention adds the relative position bias."""

    @property
    def runs(self) -> bool:
        """Whether it is a step of the forward pass; the relative position bias is called by the layers instead."""
        return self.name != RELATIVE


def parts(config: Config, vocabulary: Vocabulary, weights: Weights, shared: Shared) -> list[Part]:
    """Return the parts of the model that the configuration describes; the last one takes `finish`, see `Head`."""
    relative = config.embedding.pos_emb == "rpe"
    return [
        Part(EMBEDDING, partial(TokenEmbedding, config, vocabulary, weights.at(EMBEDDING))),
        Part(POSITIONS, partial(PositionEmbedding, config, weights.at(POSITIONS))),
        *([Part(RELATIVE, partial(RelativeBias, config, weights.at(RELATIVE), shared.tables))] if relative else []),
        *_blocks(config, weights, shared),
        Part(FINAL_NORM, partial(norm, config.shape.hidden_size, config.norm, weights.ranks.sequence)),
        _head(config, vocabulary, weights),
    ]


def build(parts: Sequence[Part]) -> dict[str, Any]:
    """Return part name -> module, in the order of the parts."""
    modules: dict[str, Any] = {}
    for part in parts:
        if part.name not in modules:
            read = RELATIVE if part.reads_bias else part.tied_to
            modules[part.name] = part.build(*([modules[read]] if read else []))
    return modules


def _blocks(config: Config, weights: Weights, shared: Shared) -> list[Part]:
    order = weights_of_layers(config.shape)
    blocks = []
    for index in order:
        layer = order.index(index)  # the first layer with these weights, by which their kind is chosen
        name = f"{LAYERS}.{index}"
        block = partial(block_class(config, layer), config, weights.at(name), shared, layer)
        reads_bias = config.embedding.pos_emb == "rpe" and has_attention(config, layer)
        blocks.append(Part(name, block, reads_bias=reads_bias))
    return blocks


def _head(config: Config, vocabulary: Vocabulary, weights: Weights) -> Part:
    if is_reward_model(config):
        return Part(REWARD_HEAD, partial(RewardHead, config, weights.at(REWARD_HEAD)))
    output = partial(OutputLayer, config, vocabulary, weights.at(OUTPUT))
    return Part(OUTPUT, output, "" if config.embedding.no_weight_tying else EMBEDDING)
