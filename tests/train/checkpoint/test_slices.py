"""What ranks of two layouts have in common of a weight is what cutting the full weight says."""

from __future__ import annotations

import random
from functools import reduce

import pytest
import torch

from neoxargs.train.checkpoint.slices import Slice, common
from neoxargs.train.parallel.layers import TensorShard, rank_slice


def of_one_layout(draw: random.Random, shape: list[int]) -> list[list[TensorShard]]:
    """Return the shards of every rank of a layout: cut once, or cut again along the same or another dimension."""
    first, second = (TensorShard(draw.randrange(len(shape)), draw.choice((1, 2, 3)), 0, size) for size in (2, 4))
    chosen = draw.choice(([], [first], [first, second]))
    ranks: list[list[TensorShard]] = [[]]
    for shard in chosen:
        ranks = [[*before, shard._replace(rank=rank)] for before in ranks for rank in range(shard.size)]
    return ranks


@pytest.mark.parametrize("seed", range(60))
def test_any_rows_of_any_slice_are_put_together_from_those_of_any_other_layout(seed: int) -> None:
    draw = random.Random(seed)
    shape = [48] * draw.randrange(1, 4)
    full = torch.arange(torch.Size(shape).numel()).view(shape)
    saved = of_one_layout(draw, shape)
    for shards in of_one_layout(draw, shape):
        own = Slice(shape, shards)
        expected = reduce(rank_slice, shards, full)
        assert own.shape == list(expected.shape)
        rows = range(draw.randrange(len(expected)), len(expected))
        found, times = torch.full_like(expected[rows.start :], -1), 0
        for theirs in saved:
            for block in common(Slice(shape, theirs), own, rows):
                target, source = found, reduce(rank_slice, theirs, full)
                for dimension, interval in enumerate(block):
                    target = target.narrow(dimension, interval.ours, interval.length)
                    source = source.narrow(dimension, interval.theirs, interval.length)
                target.copy_(source)
                times += target.numel()
        assert torch.equal(found, expected[rows.start :])
        assert times == found.numel()  # each element is read once


def test_rows_that_only_one_of_two_weights_has_are_left_out() -> None:
    """Padding of a vocabulary: the last rank of two has rows that 10 rows do not have."""
    (block,) = common(Slice([10, 4]), Slice([16, 4], [TensorShard(0, 1, 1, 2)]), range(8))
    assert [tuple(interval) for interval in block] == [(8, 0, 2), (0, 0, 4)]


@pytest.mark.parametrize(("size", "parts"), [(5, 1), (6, 2)])
def test_ranks_must_share_a_weight_equally(size: int, parts: int) -> None:
    with pytest.raises(AssertionError):
        rank_slice(torch.zeros(size, 2), TensorShard(0, parts, 0, 4))
