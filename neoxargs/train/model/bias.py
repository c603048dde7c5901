"""Position biases added to attention scores: T5's learned relative bias, and ALiBi's slopes.

Both depend only on the distance between two tokens, not on their absolute positions, and so apply to any part of a
sequence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from neoxargs.config.config import Config
from neoxargs.facts.attention import head_dim
from neoxargs.train.model.scales import multipliers
from neoxargs.train.ops.tables import Tables
from neoxargs.train.parallel.init import METHODS
from neoxargs.train.parallel.layers import Weights
from neoxargs.train.process.mesh import Axis


class RelativeBias(nn.Module):
    """T5's relative position bias (Raffel et al. 2019, arXiv:1910.10683): one value per distance bucket and head.

    All layers share one table. As in GPT-NeoX, its values are multiplied by the square root of the head dimension.
    """

    def __init__(self, config: Config, weights: Weights, tables: Tables) -> None:
        super().__init__()
        shape, embedding = config.shape, config.embedding
        self.embedding = embedding
        self.bias: Tensor | None = None
        self.tables = tables
        self.scale = math.sqrt(head_dim(shape)) * multipliers(config)[1]
        size = (embedding.rpe_num_buckets, shape.num_attention_heads)
        xavier = METHODS["xavier_normal"](0.0, shape.num_layers, shape.hidden_size)
        self.table = weights.parameter("table", size, xavier, split=1)
        self.context = weights.ranks.context_heads

    @contextmanager
    def use_precomputed(self, bias: Tensor) -> Iterator[None]:
        """Return `bias` to all layers within the block instead of computing it in each of them."""
        self.bias = bias
        yield
        self.bias = None

    def forward(self, seq: int, rows: Tensor | None = None) -> Tensor:
        """Return the bias of the heads for which this rank has queries, (N, S, C), with a row for each query.

        rows: positions of the queries to compute, of any shape: (N, *rows.shape, C).
        """
        device = self.table.device
        options = self.embedding
        arguments = options.rpe_num_buckets, options.rpe_max_distance, options.rpe_causal
        buckets = self.tables.square(
            ("rpe", device), seq, lambda size: bucket(_distances_back(size, device), *arguments)
        )
        # Indexing the transposed table: (N, buckets) by (S, C) gives (N, S, C).
        heads = self.table.chunk(self.context.size, dim=1)[self.context.rank]
        return (heads * self.scale).t()[:, buckets if rows is None else buckets[rows]]


def bucket(back: Tensor, buckets: int, max_distance: int, causal: bool = True) -> Tensor:
    """Return T5's bucket index for each distance `back`, in tokens, in the same shape.

    Each of the first half of the buckets holds one distance; the others grow logarithmically up to `max_distance`. With
    `causal` false only half of all buckets are used: the other half is for later tokens, which a GPT never attends to.
    """
    buckets = buckets if causal else buckets // 2
    exact = buckets // 2
    # Later tokens, which the causal mask hides, get the bucket of distance 0.
    back = back.clamp(min=0)
    # clamp: log(0) would be -inf before `where` drops it.
    ratio = torch.log(back.clamp(min=1) / exact) / math.log(max_distance / exact)
    wide = exact + (ratio * (buckets - exact)).long()
    return torch.where(back < exact, back, wide.clamp(max=buckets - 1))


def _distances_back(seq: int, device: torch.device) -> Tensor:
    """(S, C): the distance from the row's token back to the column's token."""
    positions = torch.arange(seq, device=device)
    return positions[:, None] - positions


def alibi_slopes(heads: int) -> list[float]:
    """Return the slope of each head in ALiBi (Press et al. 2021, arXiv:2108.12409).

    For a power of two heads they are a geometric series that ends at 2 ** -8. For any other number of heads, the series
    of the next lower power of two is followed by every second slope of the series for twice that power.
    """
    power = 2 ** int(math.log2(heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    between = [2 ** (-4 * (i + 1) / power) for i in range(0, 2 * power, 2)]
    return slopes + between[: heads - power]


def local_slopes(heads: int, axis: Axis) -> tuple[float, ...]:
    """Return the slopes of the heads that this rank has in attention."""
    size = heads // axis.size
    return tuple(alibi_slopes(heads)[axis.rank * size :][:size])


def alibi(seq: int, slopes: tuple[float, ...], device: torch.device) -> Tensor:
    """Return ALiBi's bias, (N, S, C) in fp32: 0 at distance 0, then minus slope x distance."""
    return -torch.tensor(slopes, device=device)[:, None, None] * _distances_back(seq, device).clamp(min=0)
