"""Rewards of documents: files in the format of token files, with one number per document in place of its tokens.

GPT-NeoX's tool writes them as int32, deepy as float32.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neoxargs.files.token_files import index

#: (documents), float32.
Rewards = NDArray[np.float32]
#: The codes of floating point types, which stand for 4 and 8 bytes in GPT-NeoX, and for 8 and 4 in megatron-core.
FLOATS = {6: "<f4", 7: "<f4"}


def read(prefix: str, documents: int) -> Rewards | str:
    """Return the rewards of so many documents, or what is wrong with the file, as the rest of a sentence about it."""
    found = index.read(prefix, index.TYPES | FLOATS)
    if found is None:
        return "is missing or damaged"
    if len(found.lengths) != documents:
        return f"has rewards of {len(found.lengths):,} documents, but the token file has {documents:,}"
    if len(other := np.flatnonzero(found.lengths != 1)):
        return f"has {int(found.lengths[other[0]]):,} numbers in document {int(other[0])}, but must have one reward"
    rewards = _numbers(found, os.path.getsize(prefix + ".bin")).astype(np.float32)
    if len(wrong := np.flatnonzero(~np.isfinite(rewards))):
        return f"has the reward {rewards[wrong[0]]} in document {int(wrong[0])}, but rewards must be finite"
    if documents and not rewards.any():
        return "has only rewards of 0, from which nothing is learnt"
    return rewards


def _numbers(found: index.TokenFile, size: int) -> NDArray[Any]:
    """Return the numbers of a file. size: of its numbers in bytes, which tells the two floating point types apart."""
    is_double = found.ids.dtype.kind == "f" and size == 8 * len(found.lengths)
    return found.ids.view("<f8") if is_double else found.ids
