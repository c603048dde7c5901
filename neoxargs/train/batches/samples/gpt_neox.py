"""Samples in GPT-NeoX's order: which tokens make sample i of a token file, and which file sample i of a blend is from.

GPT-NeoX repeats the documents of a source for as many epochs as the run needs, shuffles all of them together, joins
them, cuts samples that overlap by one token, and shuffles the samples. megatron-core does the same, except that it
keeps a last epoch of which less than 80 % is needed separate from the others. It also sizes the sources of a blend
differently. tests/reference/neox_sample_orders.json holds orders that GPT-NeoX's own code computed.
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from neoxargs.base.files import replacing
from neoxargs.base.text import format_duration
from neoxargs.facts.data import added
from neoxargs.files.token_files.index import IGNORED
from neoxargs.train.batches.loader import Samples

#: From so many samples on, the wait for their order is announced.
MANY_SAMPLES, SECONDS_PER_SAMPLE = 10_000_000, 3e-7

Integers = NDArray[np.integer[Any]]
Arrays = dict[str, Integers]


@dataclass(frozen=True)
class SourceSamples:
    """Samples of one token file; sample i consists of seq_length + 1 tokens.

    masked: id of the input token whose prediction the loss excludes, for `eod_mask_loss`; None excludes none.
    """

    file: Any
    """megatron-core's IndexedDataset."""
    documents: Integers
    """Sequence numbers of all epochs, shuffled; samples are cut from these sequences, joined in this order."""
    starts: Integers
    """(samples + 1, 2): index into `documents` and offset of a sample's first token, which is also the last token of
    the sample before."""
    order: Integers
    """Sample i of the source -> its position in `starts`."""
    masked: int | None = None
    labels: Any = None
    """The label file, which is cut into samples in the same way; None if all tokens count."""

    def __len__(self) -> int:
        # GPT-NeoX has not counted the last sample since July 2021, but a blend may read it.
        return max(len(self.order) - 1, 1)

    def __getitem__(self, index: int) -> Mapping[str, Tensor]:
        text = self.text(index)
        return sample_of(text, text if self.labels is None else self._read(self.labels, index), self.masked)

    def text(self, index: int) -> NDArray[np.int64]:
        """Return the tokens of a sample, (seq_length + 1)."""
        return self._read(self.file, index)

    def _read(self, file: Any, index: int) -> NDArray[np.int64]:
        # A blend may ask for more samples than the source has; it then starts over.
        position = self.order[index if index < len(self.order) else index % len(self)]
        (first, offset), (last, end) = self.starts[position].tolist(), self.starts[position + 1].tolist()
        parts = []
        for place in range(first, last + 1):
            begin = offset if place == first else 0
            length = end + 1 - begin if place == last else None
            parts.append(file.get(int(self.documents[place]), offset=begin, length=length))
        return np.concatenate(parts).astype(np.int64)


def sample_of(text: NDArray[np.int64], labels: NDArray[np.int64], masked: int | None) -> Mapping[str, Tensor]:
    """Return a sample from its tokens and their labels, both (seq_length + 1); labels are IGNORED or the token."""
    tokens, targets = torch.from_numpy(text[:-1].copy()), torch.from_numpy(labels[1:].copy())
    counts = targets != IGNORED
    if masked is not None:
        counts &= tokens != masked
    return {"tokens": tokens, "labels": targets, "loss_mask": counts.float()}


@dataclass(frozen=True)
class BlendSamples:
    """Samples of several sources, in proportion to their weights, or of one source in another order."""

    sources: Sequence[Samples]
    source: Integers
    """Sample i -> index in `sources`."""
    index: Integers
    """Sample i -> index of the sample in that source."""

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Mapping[str, Tensor]:
        samples, place = self.locate(index)
        return samples[place]

    def locate(self, index: int) -> tuple[Samples, int]:
        """Return the source of a sample, and the sample's index there. After the last sample, start over."""
        index %= len(self)
        return self.sources[int(self.source[index])], int(self.index[index])


def source_samples(
    file: Any, sequences: slice, samples: int, seq_length: int, seed: int, identity: Any, cache: Path,
    masked: int | None = None,
) -> SourceSamples:  # fmt: skip
    """Return at least `samples` samples of some sequences of a token file.

    identity: what the contents of the file depend on; JSON. cache: folder of the index files, written if missing.
    """
    key = ["source", identity, sequences.start, sequences.stop, samples, seq_length, seed]
    order = partial(source_order, file.sequence_lengths, sequences, samples, seq_length, seed)
    arrays = cached(cache, key, ("documents", "starts", "order"), order, samples)
    return SourceSamples(file, arrays["documents"], arrays["starts"], arrays["order"], masked)


def source_order(lengths: Integers, sequences: slice, samples: int, seq_length: int, seed: int) -> Arrays:
    """Return the arrays of `SourceSamples` for sequences of a token file with these lengths."""
    chosen = np.arange(sequences.start, sequences.stop, dtype=np.int32)
    tokens = int(lengths[chosen].sum(dtype=np.int64))
    count = epochs(tokens, samples, seq_length)
    # RandomState and not default_rng: GPT-NeoX's generator, whose numbers no version of numpy changes. Documents and
    # then samples are shuffled with the same one.
    random = np.random.RandomState(seed)
    documents = np.tile(chosen, count)
    random.shuffle(documents)
    # The C++ loops read memory of exactly these types, also below.
    starts = _helpers().build_sample_idx(np.array(lengths, np.int32), documents, seq_length, count, tokens)
    order = np.arange(len(starts) - 1, dtype=np.uint32 if len(starts) < 2**32 - 1 else np.int64)
    random.shuffle(order)
    return {"documents": documents, "starts": starts, "order": order}


def epochs(tokens: int, samples: int, seq_length: int) -> int:
    """Return how often a source of so many tokens must be repeated for so many samples, at least once.

    The samples overlap by one token: n of them need n x seq_length + 1 tokens.
    """
    return max(1, -(-(samples * seq_length + 1) // tokens))


def blend_samples(
    build: Sequence[Callable[[int], Samples]], weights: Sequence[float], samples: int, identity: Any, cache: Path,
    reach: int = 0,
) -> BlendSamples:  # fmt: skip
    """Return at least `samples` samples, unless the sources have just one sample fewer than the blend draws from them.

    build: one function for each source, which returns it with at least the given number of samples. reach: if more are
    needed, how many; each source that has ended then starts over.
    """
    total = added(weights)
    weights = [weight / total for weight in weights]
    # GPT-NeoX makes 0.5 % more samples than each source's share.
    sources = [one(math.ceil(samples * weight * 1.005)) for one, weight in zip(build, weights, strict=True)]
    size = max(sum(map(len, sources)), reach)
    key = ["blend", identity, weights, size]
    arrays = cached(cache, key, ("source", "index"), partial(blend_order, weights, size))
    return BlendSamples(sources, arrays["source"], arrays["index"])


def blend_order(weights: Sequence[float], size: int) -> Arrays:
    """Return the arrays of `BlendSamples`: every sample is from the source that lags furthest behind its share."""
    shares = np.array(weights, np.float64)
    shares /= shares.sum()
    source, index = np.zeros(size, np.int16), np.zeros(size, np.int64)
    _helpers().build_blending_indices(source, index, shares, len(shares), size, False)
    return {"source": source, "index": index}


def _helpers() -> Any:
    """Return megatron-core's module of loops in C++, which it has from the same source as GPT-NeoX."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.datasets import helpers
    return helpers


def cached(cache: Path, key: Any, names: Sequence[str], build: Callable[[], Arrays], samples: int = 0) -> Arrays:
    """Return arrays from their files, mapped into memory; if one is missing, build and write them.

    samples: of which an order is computed; that is announced if it takes longer than a few seconds.
    """
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]
    files = {name: cache / f"{digest}-{key[0]}-{name}.npy" for name in names}
    if not all(file.is_file() for file in files.values()):
        cache.mkdir(parents=True, exist_ok=True)
        if samples >= MANY_SAMPLES:
            seconds = format_duration(samples * SECONDS_PER_SAMPLE)
            print(f"computing the order of {samples:,} samples (only once; takes about {seconds})", flush=True)
        for name, array in build().items():
            # Several machines may write at the same time.
            with replacing(files[name]) as part, open(part, "wb") as stream:
                np.save(stream, array)
    return {name: np.load(file, mmap_mode="r") for name, file in files.items()}
