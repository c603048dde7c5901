"""Samples that consist of whole documents, for finetuning (`pack_impl` other than `packed`).

token_files/packing.py says which documents make a sample. All passes over the data have the same samples; passes.py
orders them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from neoxargs.files.token_files import packing
from neoxargs.files.token_files.documents import documents_of
from neoxargs.files.token_files.index import IGNORED
from neoxargs.files.token_files.sources import Source
from neoxargs.train.batches.samples.gpt_neox import Arrays, Integers, cached, sample_of

#: The token of positions that no document fills.
PADDING = 0


@dataclass(frozen=True)
class Packing:
    """The options by which the documents of a source become samples."""

    how: packing.How
    seq_length: int
    seed: int
    allow_chopped: bool = True
    prompt: int = 0
    """Number of positions at the beginning of every sample that a soft prompt occupies."""
    masked: int | None = None
    """Id of the input token whose prediction the loss excludes, for `eod_mask_loss`; None excludes none."""

    @property
    def window(self) -> int:
        """Maximum number of tokens of a sample."""
        return packing.window_of(self.seq_length, self.prompt)


@dataclass(frozen=True)
class DocumentSamples:
    """The samples of one pass over a token file. Padding has no labels.

    With `best_fit`, a sample also has `starts` (S): where the document of each position begins. No document then
    predicts the first token of the next one.
    """

    file: Any
    """megatron-core's IndexedDataset."""
    labels: Any
    """The label file, an IndexedDataset too; None if all tokens count."""
    documents: Integers
    bounds: Integers
    """(samples + 1): index in `documents` of each sample's first document, then the number of documents."""
    packing: Packing
    left_out: tuple[int, int]
    """Number of documents that are longer than a sample, and number of documents without a trained token."""

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, index: int) -> Mapping[str, Tensor]:
        first, end = self.bounds[index], self.bounds[index + 1]
        documents = self.documents[first:end].tolist()
        lengths = (min(self.packing.window, int(self.file.sequence_lengths[document])) for document in documents)
        ends = np.cumsum([0, *lengths])
        text = self._read(self.file, documents, ends, PADDING)
        labels = self._read(self.file if self.labels is None else self.labels, documents, ends, IGNORED)
        if self.packing.how != "best_fit":
            return sample_of(text, labels, self.packing.masked)
        # `sample_of` shifts labels by one, so these are what the last token of each document would predict.
        labels[ends[:-1]] = IGNORED
        # Padding after the last document counts as a document of its own.
        starts = np.repeat(ends, np.diff(ends, append=len(text)))
        return {**sample_of(text, labels, self.packing.masked), "starts": torch.from_numpy(starts[:-1].copy())}

    def first_document(self, index: int) -> int:
        """Return the number of a sample's first document in the file."""
        return int(self.documents[self.bounds[index]])

    def _read(self, file: Any, documents: list[int], ends: NDArray[np.int64], padding: int) -> NDArray[np.int64]:
        """Return tokens or labels of a sample, (seq_length + 1). ends: where the documents begin, and their end."""
        row = np.full(self.packing.seq_length + 1, padding, np.int64)
        # Not strict: `ends` has one entry more than there are documents.
        for document, begin, end in zip(documents, ends, ends[1:], strict=False):
            row[begin:end] = file.get(document, offset=0, length=int(end - begin))
        return row


def document_samples(
    file: Any, labels: Any, source: Source, packing_: Packing, identity: Any, cache: Path
) -> DocumentSamples:
    """Return the samples of one pass over the documents of a source; there may be none.

    file, labels: the open files of the source. identity: what the contents of its files depend on; JSON. cache: folder
    of the index files, written if missing.
    """
    sequences = source.share.sequences(len(file.sequence_lengths))

    def build() -> Arrays:
        found = documents_of(source, packing_.window)
        # Damaged files are refused before.
        assert found is not None
        made = packing.pack(packing_.how, *found, packing_.window, packing_.allow_chopped, packing_.seed)
        left_out = np.array([made.too_long, made.untrained])
        return {"documents": made.documents + sequences.start, "bounds": made.bounds, "left-out": left_out}

    settings = [packing_.how, packing_.window, packing_.allow_chopped, packing_.seed, packing.digest(packing_.how)]
    key = ["packed", identity, sequences.start, sequences.stop, settings]
    arrays = cached(cache, key, ("documents", "bounds", "left-out"), build)
    too_long, untrained = arrays["left-out"].tolist()
    return DocumentSamples(file, labels, arrays["documents"], arrays["bounds"], packing_, (too_long, untrained))
