"""Which tokens of which files the samples of a data set consist of, without reading them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from neoxargs.train.batches.loader import Samples
from neoxargs.train.batches.samples.answers import Pairs, Rated
from neoxargs.train.batches.samples.gpt_neox import BlendSamples, Integers, SourceSamples
from neoxargs.train.batches.samples.whole_documents import DocumentSamples


class Spans(NamedTuple):
    """Parts of the sequences of a token file, as arrays of the same length."""

    file: Any
    """megatron-core's IndexedDataset."""
    sample: Integers
    """Which of the given samples a part belongs to, as an index."""
    sequence: Integers
    begin: Integers
    """First token in the sequence."""
    end: Integers
    """Token after the last one. Of joined documents, this leaves out the token that is only predicted, with which the
    next sample begins."""


def spans(samples: Samples, numbers: Integers) -> Iterator[Spans]:
    """Yield the parts that samples of a data set consist of, for each of its files, in the order of the samples."""
    found: Any = samples
    if isinstance(found, BlendSamples):
        numbers = numbers % len(found)
        yield from _of_each(found.sources, found.source[numbers], found.index[numbers])
    elif isinstance(found, SourceSamples):
        within = np.where(numbers < len(found.order), numbers, numbers % len(found))
        yield _joined(found.file, found.documents, found.starts, found.order[within])
    elif isinstance(found, DocumentSamples):
        yield _whole(found, numbers)
    elif isinstance(found, Pairs):
        yield from (_whole(answers, numbers) for answers in (found.answers, found.rejected))
    elif isinstance(found, Rated):
        yield _whole(found.answers, numbers)
    elif hasattr(found, "datasets"):  # megatron-core's BlendedDataset
        yield from _of_each(found.datasets, found.dataset_index[numbers], found.dataset_sample_index[numbers])
    else:  # megatron-core's GPTDataset
        yield _joined(found.dataset, found.document_index, found.sample_index, found.shuffle_index[numbers])


class Part(NamedTuple):
    """A part of a document in a sample."""

    sample: int
    dataset: str
    """Prefix of its token file."""
    document: int
    """Its number in the file."""
    tokens: tuple[int, int]
    """First token in the document, and the token after the last one."""
    bytes: tuple[int, int]
    """The same in the .bin file, in bytes."""


def parts(samples: Samples, numbers: range) -> list[Part]:
    """Return the parts of documents that samples consist of, in the order of the samples."""
    found = []
    for part in spans(samples, np.arange(numbers.start, numbers.stop)):
        ends, pointers = np.asarray(part.file.document_indices), part.file.index.sequence_pointers
        lengths, size = part.file.sequence_lengths, part.file.index.dtype_size
        for sample, sequence, begin, end in zip(*(values.tolist() for values in part[1:]), strict=True):
            document = int(np.searchsorted(ends, sequence, side="right")) - 1
            # A long document can be several sequences.
            before, place = int(lengths[ends[document] : sequence].sum()), int(pointers[sequence])
            tokens, within = (before + begin, before + end), (place + begin * size, place + end * size)
            found.append(Part(numbers.start + sample, part.file.path_prefix, document, tokens, within))
    return sorted(found, key=lambda each: each.sample)


def _of_each(sources: Any, source: Integers, index: Integers) -> Iterator[Spans]:
    for number, samples in enumerate(sources):
        (chosen,) = np.nonzero(source == number)
        if len(chosen):
            yield from (part._replace(sample=chosen[part.sample]) for part in spans(samples, index[chosen]))


def _joined(file: Any, documents: Integers, starts: Integers, positions: Integers) -> Spans:
    """Return the parts of samples that are cut from joined documents; see `SourceSamples`."""
    (first, offset), (last, end) = starts[positions].T.astype(np.int64), starts[positions + 1].T.astype(np.int64)
    sample, place = _ranges(first, last + 1)
    sequence = documents[place]
    begins = np.where(place == first[sample], offset[sample], 0)
    ends = np.where(place == last[sample], end[sample], file.sequence_lengths[sequence])
    some = ends > begins
    return Spans(file, sample[some], sequence[some], begins[some], ends[some])


def _whole(samples: DocumentSamples, numbers: Integers) -> Spans:
    sample, place = _ranges(samples.bounds[numbers], samples.bounds[numbers + 1])
    sequence = samples.documents[place]
    lengths = np.minimum(samples.file.sequence_lengths[sequence], samples.packing.window)
    return Spans(samples.file, sample, sequence, np.zeros_like(lengths), lengths)


def _ranges(first: Integers, end: Integers) -> tuple[Integers, Integers]:
    """Return the numbers of all ranges in a row: for each, the index of its range, and itself."""
    counts = (end - first).astype(np.int64)
    which = np.repeat(np.arange(len(counts)), counts)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts) + first[which]
