"""Read tensors that `neox_checkpoint/pickles.py` located in a file.

Files are read, not memory-mapped: the pages of a mapped file stay in memory as long as there is room, so a process
would seem to need memory for the whole checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from neoxargs.neox_checkpoint.optimizer import Part
from neoxargs.neox_checkpoint.pickles import TensorRef, unreadable


def read_tensor(ref: TensorRef) -> Tensor:
    """Return a tensor with its elements in memory; raise Problems if the file ends before them."""
    flat = _elements(ref, 0, ref.span)
    # The storage in the order of the file; shape and stride give the tensor its view of it.
    return flat.as_strided(ref.shape, ref.stride)


def read_parts(parts: Sequence[Part]) -> Tensor:
    """Return the elements of several parts of flat tensors, one after the other."""
    read = [_elements(part.tensor, part.start, part.length) for part in parts]
    return read[0] if len(read) == 1 else torch.cat(read)


def _elements(ref: TensorRef, start: int, count: int) -> Tensor:
    """Return `count` elements of the storage, from the tensor's first one + `start` on."""
    buffer = torch.empty(count * ref.itemsize, dtype=torch.uint8)
    with ref.file.open("rb") as file:
        file.seek(ref.position(file) + start * ref.itemsize)
        # readinto fills the tensor's own memory, without a bytes object in between.
        if file.readinto(buffer.numpy().data) != len(buffer):
            raise unreadable(ref.file, "it is truncated")
    return buffer.view(getattr(torch, ref.dtype))
