"""How whole documents fill samples (`pack_impl`), from nothing but their lengths.

A sample reads `window` = seq_length + 1 tokens, because the inputs and the labels of its positions overlap by all
tokens but one. `packed`, which cuts documents wherever a sample is full, is in train/batches/samples/gpt_neox.py.

The number of samples of one pass over the data depends on the lengths alone for `unpacked` and `best_fit`, and also on
the seed for `pack_until_overflow`.
"""

from __future__ import annotations

import hashlib
import itertools
from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.integer[Any]]
#: Values of `pack_impl` for which a sample consists of whole documents.
How = Literal["unpacked", "pack_until_overflow", "best_fit"]


def window_of(seq_length: int, prompt: int) -> int:
    """Return how many tokens a sample reads. prompt: positions at its beginning that a soft prompt takes."""
    return seq_length + 1 - prompt


class Packed(NamedTuple):
    """The documents of the samples of one pass over the data."""

    documents: Integers
    """The documents of the first sample, then those of the second, and so on."""
    bounds: Integers
    """(samples + 1): the index in `documents` of each sample's first document, then the number of documents."""
    too_long: int
    """Number of documents that are left out because they are longer than the window."""
    untrained: int
    """Number of documents that are left out because none of their tokens within the window counts toward the loss."""

    @property
    def samples(self) -> int:
        return len(self.bounds) - 1


def pack(how: How, lengths: Integers, trained: Integers | None, window: int, allow_chopped: bool, seed: int) -> Packed:
    """Pack documents into samples of at most `window` tokens; a longer document is cut, or left out.

    lengths: tokens of each document. trained: number of trained tokens of each document within the window; None if all
    but the first one are trained.
    """
    trained = np.minimum(lengths, window) - 1 if trained is None else trained
    fits = lengths <= window if not allow_chopped else np.ones(len(lengths), bool)
    chosen = np.flatnonzero(fits & (trained > 0))
    # The old generator: numpy guarantees its numbers in all versions, so a resumed run sees the same samples.
    random = np.random.RandomState(seed)
    order = random.permutation(chosen)
    cut = np.minimum(lengths[order], window).astype(np.int64)
    if how == "best_fit":
        # Best fit makes the samples of the longest documents first, and a run would see its documents by length.
        within, bounds = _in_random_order(*best_fit(cut, window), random)
        order = order[within]
    else:
        bounds = np.arange(len(order) + 1) if how == "unpacked" else until_overflow(cut, window)
    too_long = len(lengths) - int(fits.sum())
    return Packed(order, bounds, too_long, len(lengths) - too_long - len(chosen))


def digest(how: How) -> str:
    """Return a digest of a fixed example, which changes whenever this module comes to make other samples.

    It belongs to the names of files with samples: without it, a later version would read those of an earlier one.
    """
    made = pack(how, np.arange(1, 200) * 37 % 61 + 2, None, 48, True, seed=0)
    return hashlib.sha256(np.concatenate([made.documents, made.bounds]).astype("<i8").tobytes()).hexdigest()[:16]


def _in_random_order(
    documents: NDArray[np.int64], bounds: NDArray[np.int64], random: np.random.RandomState
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the documents and the bounds of the same samples in random order."""
    order = random.permutation(len(bounds) - 1)
    sizes = np.diff(bounds)[order]
    shuffled = np.concatenate(([0], np.cumsum(sizes)))
    places = np.repeat(bounds[:-1][order] - shuffled[:-1], sizes) + np.arange(shuffled[-1])
    return documents[places], shuffled


def joined_samples(tokens: int, seq_length: int) -> int:
    """Return the number of samples of one pass over joined documents (`packed`), as GPT-NeoX counts them.

    The samples overlap by one token. GPT-NeoX does not use the last one, unless it is the only one.
    """
    count = max(tokens - 1, 0) // seq_length
    return max(count - 1, min(count, 1))


def until_overflow(lengths: Integers, window: int) -> NDArray[np.int64]:
    """Return the bounds of samples that are filled in order, each until the next document does not fit.

    lengths: at most `window` each.
    """
    ends = np.concatenate(([0], np.cumsum(lengths)))
    following = (np.searchsorted(ends, ends[:-1] + window, side="right") - 1).tolist()
    bounds = [0]
    while bounds[-1] < len(lengths):
        bounds.append(following[bounds[-1]])
    return np.array(bounds, np.int64)


def best_fit(lengths: Integers, window: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the order of the documents, sample by sample, and the bounds of the samples.

    Best-fit decreasing (arXiv:2404.10830): from the longest to the shortest document, each goes into the sample with
    the least free space that is enough. lengths: at most `window` each.
    """
    # Stable, so that equal lengths keep the random order that they arrive in.
    order = np.argsort(-lengths, kind="stable")
    descending = lengths[order]
    sample_of = np.empty(len(lengths), np.int64)
    bins = _Bins(window)
    edges = np.flatnonzero(np.diff(descending, prepend=-1, append=-1)).tolist()
    for first, last in itertools.pairwise(edges):
        placed = [np.repeat(samples, each) for samples, each in bins.place(int(descending[first]), last - first)]
        sample_of[first:last] = np.concatenate(placed)
    by_sample = np.argsort(sample_of, kind="stable")
    bounds = np.concatenate(([0], np.cumsum(np.bincount(sample_of, minlength=bins.count))))
    return order[by_sample], bounds


class _Bins:
    """The samples by their free space. All documents of one length are placed at once.

    If a document fits into a sample with the least sufficient space, the next ones of the same length follow it there
    until the sample has no space for another one: no sample had less sufficient space before.
    """

    def __init__(self, window: int) -> None:
        self.window, self.count = window, 0
        self._spaces: list[int] = []
        """The different amounts of free space, in ascending order."""
        self._samples: dict[int, list[NDArray[np.int64]]] = {}
        """For each amount of free space, the samples that have it, in the order in which they reached it."""

    def place(self, length: int, count: int) -> Iterator[tuple[NDArray[np.int64], int]]:
        """Place `count` documents; yield samples, and how many documents each of them receives."""
        # Spaces that have samples, from the smallest that is sufficient; full ones are not listed.
        while count and (at := bisect_left(self._spaces, length)) < len(self._spaces):
            space = self._spaces.pop(at)
            samples = np.concatenate(self._samples.pop(space))
            placed, left = yield from self._fill(samples, space, length, count)
            count -= placed
            self._add(space, left, first=True)
        if count:
            new = np.arange(self.count, self.count + -(-count // (self.window // length)))
            self.count += len(new)
            yield from self._fill(new, self.window, length, count)

    def _fill(self, samples: NDArray[np.int64], space: int, length: int, count: int) -> Any:
        """Fill samples with this free space; return how many documents were placed, and the samples without any."""
        each = space // length
        full, rest = divmod(count, each)
        if full >= len(samples):
            full, rest = len(samples), 0
        if full:
            yield samples[:full], each
            self._add(space - each * length, samples[:full])
        if rest:
            yield samples[full : full + 1], rest
            self._add(space - rest * length, samples[full : full + 1])
        return full * each + rest, samples[full + (rest > 0) :]

    def _add(self, space: int, samples: NDArray[np.int64], first: bool = False) -> None:
        if not space or not len(samples):
            return
        if space not in self._samples:
            insort(self._spaces, space)
        entries = self._samples.setdefault(space, [])
        entries.insert(0, samples) if first else entries.append(samples)
