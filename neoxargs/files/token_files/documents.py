"""The documents of a source, as the packing of whole documents sees them: their lengths and their trained tokens."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from neoxargs.files.token_files import index, labels
from neoxargs.files.token_files.sources import Source


class Documents(NamedTuple):
    """The documents of a source's share, or its pairs of documents."""

    lengths: NDArray[np.integer[Any]]
    """Tokens of each document; of a pair, those of the longer one."""
    trained: NDArray[np.integer[Any]]
    """Trained tokens of each document within the window; of a pair, the smaller number."""


def documents_of(source: Source, window: int) -> Documents | None:
    """Return the documents of a source; None if a file is missing or damaged, or the files do not fit together.

    window: number of tokens that a sample reads.
    """
    own = _of_one(source, window)
    if source.rejected is None or own is None:
        return own
    other = _of_one(source.rejected, window)
    if other is None or len(own.lengths) != len(other.lengths):
        return None
    return Documents(np.maximum(own.lengths, other.lengths), np.minimum(own.trained, other.trained))


def _of_one(source: Source, window: int) -> Documents | None:
    text = index.read(source.prefix)
    if text is None:
        return None
    chosen = source.share.sequences(len(text.lengths))
    lengths = text.lengths[chosen]
    if source.labels is None:
        # The first token of a document has no context that predicts it.
        return Documents(lengths, np.minimum(lengths, window) - 1)
    own = index.read(source.labels)
    if own is None or labels.other_lengths(text, own) is not None:
        return None
    return Documents(lengths, labels.trained_tokens(own, chosen, window))
