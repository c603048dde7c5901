"""Passes over the same samples, each pass in an order of its own.

The order of a pass does not depend on the number of passes, so that a run which is made longer begins with the same
samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from neoxargs.train.batches.loader import Samples
from neoxargs.train.batches.samples.gpt_neox import Arrays, BlendSamples, cached


def in_passes(sources: Sequence[Samples], samples: int, seed: int, cache: Path) -> BlendSamples:
    """Return so many samples: every sample of all sources once, then again in another order, and so on.

    The first pass over a single source keeps its order, because the source has shuffled it. cache: folder of the index
    files, written if missing.
    """
    sizes = [len(source) for source in sources]

    def build() -> Arrays:
        # All samples, one source after the other, which each pass permutes.
        source = np.repeat(np.arange(len(sizes), dtype=np.int16), sizes)
        index = np.concatenate([np.arange(size) for size in sizes])
        random, total = np.random.RandomState(seed), sum(sizes)
        orders = [random.permutation(total) for _ in range(-(-samples // total))]
        if len(sizes) == 1:
            orders[0] = np.arange(total)
        order = np.concatenate(orders)[:samples]
        return {"source": source[order], "index": index[order]}

    arrays = cached(cache, ["passes", sizes, samples, seed], ("source", "index"), build, samples)
    return BlendSamples(sources, arrays["source"], arrays["index"])
