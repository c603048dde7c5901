"""Positions as something added to attention scores: T5's learned bias by distance, and ALiBi's slopes.

Both depend on how far apart two tokens are and not on where they stand, so they fit any part of a sequence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch
from torch import Tensor, nn

from neoxargs.registry.model import Embedding, Shape
from neoxargs.resolve.config import Config
from neoxargs.train.model.init import METHODS
from neoxargs.train.model.mup import multipliers
from neoxargs.train.parallel.make import Make
from neoxargs.train.process.mesh import Axis


class RelativeBias(nn.Module):
    """T5's relative positions (Raffel et al. 2019, arXiv:1910.10683): a number for each bucket of distances and head.

    One table for all layers, in GPT-NeoX's scale: multiplied by the square root of a head's width.
    """

    def __init__(self, shape: Shape, embedding: Embedding, make: Make, causal: bool = True) -> None:
        super().__init__()
        self.embedding, self.causal = embedding, causal
        self.bias: Tensor | None = None
        self.scale = math.sqrt(shape.hidden_size // shape.num_attention_heads)
        size = (embedding.rpe_num_buckets, shape.num_attention_heads)
        xavier = METHODS["xavier_normal"](0.0, shape.num_layers, shape.hidden_size)
        self.table = make.parameter("table", size, xavier, split=1)

    @contextmanager
    def given(self, bias: Tensor) -> Iterator[None]:
        """Layers that ask meanwhile get this, which has been computed before."""
        self.bias = bias
        yield
        self.bias = None

    def forward(self, seq: int, rows: Tensor | None = None) -> Tensor:
        """(heads / tensor ranks, seq, seq), a row for each query; of some `rows` only, (heads / ranks, *rows, seq)."""
        options = self.embedding
        buckets = _buckets(seq, options.rpe_num_buckets, options.rpe_max_distance, self.causal, self.table.device)
        return (self.table * self.scale).t()[:, buckets if rows is None else buckets[rows]]


def relative_bias(config: Config, make: Make) -> RelativeBias | None:
    """The table that all layers share, for `pos_emb: rpe`."""
    if config.embedding.pos_emb != "rpe":
        return None
    causal = config.embedding.rpe_causal or "rpe_causal" not in config.values  # false must have been written
    table = RelativeBias(config.shape, config.embedding, make.at("relative"), causal)
    table.scale *= multipliers(config)[1]
    return table


def bucket(back: Tensor, buckets: int, max_distance: int, causal: bool = True) -> Tensor:
    """T5's bucket of a token so many places back.

    The first half of the buckets are one distance each, the rest widen logarithmically up to `max_distance`. Without
    `causal` half of all buckets are kept for tokens ahead, which a GPT never sees.
    """
    buckets = buckets if causal else buckets // 2
    exact = buckets // 2
    back = back.clamp(min=0)
    ratio = torch.log(back.clamp(min=1) / exact) / math.log(max_distance / exact)
    wide = exact + (ratio * (buckets - exact)).long()
    return torch.where(back < exact, back, wide.clamp(max=buckets - 1))


@lru_cache(maxsize=4)
def _buckets(seq: int, buckets: int, max_distance: int, causal: bool, device: torch.device) -> Tensor:
    return bucket(_back(seq, device), buckets, max_distance, causal)


def _back(seq: int, device: torch.device) -> Tensor:
    """(seq, seq): how far back from the row's token the column's is."""
    places = torch.arange(seq, device=device)
    return places[:, None] - places


def alibi_slopes(heads: int) -> list[float]:
    """ALiBi (Press et al. 2021, arXiv:2108.12409): a geometric series that ends at 2 ** -8.

    Other numbers of heads than powers of two take every second slope of twice as many heads in addition.
    """
    whole = 2 ** int(math.log2(heads))
    slopes = [2 ** (-8 * (i + 1) / whole) for i in range(whole)]
    between = [2 ** (-4 * (i + 1) / whole) for i in range(0, 2 * whole, 2)]
    return slopes + between[: heads - whole]


@lru_cache(maxsize=4)
def alibi(seq: int, heads: int, axis: Axis, device: torch.device) -> Tensor:
    """(heads / tensor ranks, seq, seq) in fp32: nothing for the token itself, less the further back."""
    slopes = torch.tensor(alibi_slopes(heads), device=device).chunk(axis.size)[axis.rank]
    return -slopes[:, None, None] * _back(seq, device).clamp(min=0)
