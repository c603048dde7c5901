"""Labels of a token file: a second token file with the same sequences, each token either repeated or -100.

-100 takes a token out of the loss. Labels are not shifted: the label of a token stands at the token's own position.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from neoxargs.files.token_files import index
from neoxargs.files.token_files.index import IGNORED, TokenFile

#: Number of tokens that are compared at once.
AT_ONCE = 1 << 24
#: Kind of mismatch -> what to do about it.
HINTS = {
    "documents": "write both files from the same documents, in the same order",
    "length": "write one label for each token of every document",
    "label": "write the token itself as its label, or -100 to exclude the token from the loss; do not shift the labels",
}


class Mismatch(NamedTuple):
    """The first difference between a token file and its labels."""

    text: str
    """What is wrong, as the rest of a sentence that begins with the name of the label file."""
    kind: str
    """What differs: `documents`, `length` or `label`."""


def mismatch(text: TokenFile, labels: TokenFile) -> Mismatch | None:
    """Return the first difference; None if every label is -100 or the token at the same position."""
    if (difference := other_lengths(text, labels)) is not None:
        return difference
    for start in range(0, int(text.begins[-1]), AT_ONCE):
        part = slice(start, start + AT_ONCE)
        label, token = labels.ids[part], text.ids[part]
        wrong = np.flatnonzero((label != token) & (label != IGNORED))
        if len(wrong):
            place = start + int(wrong[0])
            document = int(np.searchsorted(text.begins, place, side="right")) - 1
            what = f"has label {int(label[wrong[0]])} at position {place - int(text.begins[document])} of document "
            what += f"{document}, where {text.prefix} has token {int(token[wrong[0]])}"
            return Mismatch(what, "label")
    return None


def other_lengths(text: TokenFile, labels: TokenFile) -> Mismatch | None:
    """Return a difference in the number of documents or in their lengths, for which no token is read."""
    if len(text.lengths) != len(labels.lengths):
        what = f"has {len(labels.lengths):,} documents, but {text.prefix} has {len(text.lengths):,}"
        return Mismatch(what, "documents")
    other = np.flatnonzero(text.lengths != labels.lengths)
    if not len(other):
        return None
    first = int(other[0])
    what = f"has {int(labels.lengths[first]):,} tokens in document {first}, but {text.prefix} has "
    return Mismatch(what + f"{int(text.lengths[first]):,}", "length")


def trained_tokens(labels: TokenFile, sequences: slice, window: int) -> NDArray[np.int64]:
    """Return for each sequence how many of its first `window` tokens are trained.

    The first token of a document is never trained: nothing before it predicts it.
    """
    begins, ends = labels.begins[:-1][sequences], labels.begins[1:][sequences]
    counts = [_trained(labels, begins[part], ends[part], window) for part in chunks(begins, ends)]
    return np.concatenate([np.zeros(0, np.int64), *counts])


def prompts(prefix: str, labels: str, most: int = 1000) -> Iterator[list[int]]:
    """Yield the tokens before the first trained one, for at most so many documents; none if a file is missing."""
    text, own = index.read(prefix), index.read(labels) if labels else None
    if text is None or own is None or other_lengths(text, own) is not None:
        return
    for begin, end in itertools.islice(itertools.pairwise(text.begins.tolist()), most):
        trained = np.flatnonzero(own.ids[begin:end] != IGNORED)
        yield text.ids[begin : begin + int(trained[0]) if len(trained) else end].tolist()


def chunks(begins: NDArray[Any], ends: NDArray[Any]) -> Iterator[slice]:
    """Yield ranges of sequences with about `AT_ONCE` tokens each."""
    if not len(begins):
        return
    cuts = np.searchsorted(ends, np.arange(begins[0] + AT_ONCE, ends[-1], AT_ONCE), side="right")
    edges = [0, *np.unique(cuts[cuts > 0]).tolist(), len(begins)]
    for first, last in itertools.pairwise(edges):
        if first < last:
            yield slice(first, last)


def _trained(labels: TokenFile, begins: NDArray[Any], ends: NDArray[Any], window: int) -> NDArray[np.int64]:
    first = int(begins[0])
    counted = labels.ids[first : int(ends[-1])] != IGNORED
    # Prefix sums: the trained tokens of a sequence are a difference of two.
    before = np.concatenate(([0], np.cumsum(counted, dtype=np.int64)))
    stops = np.minimum(begins + window, ends) - first
    starts = np.minimum(begins + 1, ends) - first
    counts: NDArray[np.int64] = before[np.maximum(stops, starts)] - before[starts]
    return counts
