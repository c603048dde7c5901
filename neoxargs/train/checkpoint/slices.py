"""The slices of a weight that ranks hold, and which elements two slices have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from neoxargs.train.parallel.layers import TensorShard


class Slice(NamedTuple):
    """A rank's slice of a weight."""

    full: Sequence[int]
    """Shape of the weight."""
    shards: Sequence[TensorShard] = ()
    """How it is divided, with this rank's number: each divides the slice of the one before."""

    @property
    def shape(self) -> list[int]:
        shape = list(self.full)
        for shard in self.shards:
            shape[shard.dimension] //= shard.size
        return shape

    def spans(self, dimension: int) -> list[tuple[int, int]]:
        """Return (first, count) of the weight's indices along a dimension, in the order in which the slice has them."""
        spans, length = [(0, self.full[dimension])], self.full[dimension]
        for shard in self.shards:
            if shard.dimension == dimension:
                part, count = length // shard.parts, length // shard.parts // shard.size
                within = [(number * part + shard.rank * count, count) for number in range(shard.parts)]
                spans, length = list(_at(spans, within)), count * shard.parts
        return spans


def _at(spans: list[tuple[int, int]], within: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the spans of a slice of a slice. within: its spans, counted in the slice that `spans` describe."""
    for start, count in within:
        before = 0
        for first, length in spans:
            low, high = max(start, before), min(start + count, before + length)
            if low < high:
                yield first + low - before, high - low
            before += length


class Interval(NamedTuple):
    """Successive indices along a dimension of two slices that are the same indices of their weight."""

    theirs: int
    ours: int
    length: int


def common(theirs: Slice, ours: Slice, rows: range) -> Iterator[tuple[Interval, ...]]:
    """Yield the blocks, as one interval per dimension, that two slices of a weight have in common.

    rows: the indices along the first dimension of `ours` that count; an interval's `ours` begins with the first.
    """
    intervals = [list(_overlaps(theirs.spans(dimension), ours.spans(dimension))) for dimension in range(len(ours.full))]
    intervals[0] = list(_within(intervals[0], rows))
    return product(*intervals)


def put_together(
    parts: Iterable[tuple[Slice, Callable[[range], Tensor]]], own: Slice, rows: range, dtype: torch.dtype
) -> Tensor:
    """Return rows of a slice of a weight from other slices of it, of which nothing else is read.

    parts: those slices, each with what returns rows of it. dtype: of the zeros where no part has a row.
    """
    found, shape = None, [len(rows), *own.shape[1:]]
    for theirs, read in parts:
        for first, *others in common(theirs, own, rows):
            source = read(range(first.theirs, first.theirs + first.length))
            for dimension, interval in enumerate(others, 1):
                source = source.narrow(dimension, interval.theirs, interval.length)
            if list(source.shape) == shape:
                return source
            found = torch.zeros(shape, dtype=source.dtype) if found is None else found
            target = found
            for dimension, interval in enumerate((first, *others)):
                target = target.narrow(dimension, interval.ours, interval.length)
            target.copy_(source)
    return torch.zeros(shape, dtype=dtype) if found is None else found


def _overlaps(theirs: list[tuple[int, int]], ours: list[tuple[int, int]]) -> Iterator[Interval]:
    before = 0
    for start, count in theirs:
        own = 0
        for first, length in ours:
            low, high = max(start, first), min(start + count, first + length)
            if low < high:
                yield Interval(before + low - start, own + low - first, high - low)
            own += length
        before += count


def _within(intervals: list[Interval], rows: range) -> Iterator[Interval]:
    for interval in intervals:
        low, high = max(interval.ours, rows.start), min(interval.ours + interval.length, rows.stop)
        if low < high:
            yield Interval(interval.theirs + low - interval.ours, low - rows.start, high - low)


def with_rows(full: Tensor, count: int) -> Tensor:
    """(rows, ...) -> (count, ...): padding rows at the end are dropped, or added with zeros."""
    if len(full) == count:
        return full
    rows = full.new_zeros(count, *full.shape[1:])
    rows[: min(len(full), count)] = full[:count]
    return rows
