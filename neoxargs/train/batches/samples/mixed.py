"""Samples of several sources in a mixture whose shares change along the run (facts/mixture.py).

Which source a sample is from depends on the shares before it and not on those after it, so that a mixture that is
changed from a point on leaves the samples before this point as they are. With the same shares all the time, it is
GPT-NeoX's blend. Of each source, a pass follows the other, each in an order of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from neoxargs.facts.mixture import CLOSE, MixtureSchedule, Piece
from neoxargs.train.batches.loader import Samples
from neoxargs.train.batches.samples.gpt_neox import Arrays, BlendSamples, Integers, blend_order, cached
from neoxargs.train.batches.samples.passes import in_passes

Floats = NDArray[np.float64]

#: Samples that are ordered together: longer pieces would take gigabytes.
TOGETHER = 1 << 24


def mix_samples(
    sources: Sequence[Samples], found: MixtureSchedule, limits: Sequence[int], seed: int, cache: Path
) -> BlendSamples:
    """Return the samples of a mixture.

    sources: one pass over each. limits: how many samples of each there may be. cache: folder of the index files,
    written if missing.
    """
    key = ["mixture", found.pieces, limits, found.end]
    arrays = cached(cache, key, ("source", "index"), partial(mixed_order, found, limits), int(found.end))
    counts = np.bincount(arrays["source"], minlength=len(sources)).tolist()
    read = [
        in_passes([source], count, seed, cache) if count else source
        for source, count in zip(sources, counts, strict=True)
    ]
    return BlendSamples(read, arrays["source"], arrays["index"])


def mixed_order(found: MixtureSchedule, limits: Sequence[int]) -> Arrays:
    """Return the arrays of `BlendSamples`. Each source always has its share of the samples so far, give or take a few.

    limits: as in `mix_samples`; `found` keeps to them but for fractions of a sample.
    """
    counts = np.zeros(len(limits), np.int64)
    # The exact number of samples of each source, which becomes a whole number somewhere else for each.
    due = np.zeros(len(limits))
    chosen: list[Integers] = []
    for (begin, shares), end in _pieces(found):
        length = int(end + CLOSE) - sum(map(len, chosen))
        part = blend_order(shares, length)["source"] if begin == 0 else _evenly(begin, end, shares, due, counts, limits)
        chosen.append(part[:length].astype(np.int16))
        counts += np.bincount(chosen[-1], minlength=len(limits))
        due += np.array(shares) * (end - begin)
    source = np.concatenate(chosen)
    index = np.empty(len(source), np.int64)
    index[np.argsort(source, kind="stable")] = np.concatenate([np.arange(count) for count in counts])
    return {"source": source, "index": index}


def _pieces(found: MixtureSchedule) -> Iterator[tuple[Piece, float]]:
    """Yield pieces of at most TOGETHER samples, with their ends."""
    for (begin, shares), end in found.with_ends():
        while begin < end:
            # The first piece is a blend as a whole, because the next ones do not blend in the same way.
            until = min(end, begin + TOGETHER) if begin else end
            yield Piece(begin, shares), until
            begin = until


def _evenly(
    begin: float, end: float, shares: Sequence[float], due: Floats, counts: Integers, limits: Sequence[int]
) -> Integers:
    """Return at least the sources of the samples of a piece, those of each source at equal distances.

    due, counts: the exact and the whole number of samples of each source before the piece.
    """
    places, names = [], []
    for number, share in enumerate(shares):
        # Sample j of a source is where its exact number of samples is j + 1/2; perhaps it should have come before.
        most = due[number] + share * (end - begin) + (2 if share else -0.5)
        own = np.arange(counts[number], min(limits[number], int(np.ceil(most))))
        places.append(begin + (own + 0.5 - due[number]) / share if share else np.full(len(own), begin))
        names.append(np.full(len(own), number, np.int16))
    order: Integers = np.argsort(np.concatenate(places), kind="stable")
    return np.concatenate(names)[order]
