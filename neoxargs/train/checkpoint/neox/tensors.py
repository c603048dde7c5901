"""Read tensors that `files/neox_checkpoint/pickles.py` located in a file, and compare their checksums.

torch.load compares none; torch.save has written a CRC-32 for every storage since torch 1.6.

Files are read, not memory-mapped: the pages of a mapped file stay in memory as long as there is room, so a process
would seem to need memory for the whole checkpoint.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from neoxargs.files.checkpoints.checksums import BLOCK, DAMAGED
from neoxargs.files.neox_checkpoint.optimizer import Part
from neoxargs.files.neox_checkpoint.pickles import Storage, TensorRef, unreadable


def read_tensor(ref: TensorRef) -> Tensor:
    """Return a tensor with its elements in memory; raise Problems if the file is truncated or damaged."""
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
        file.seek(ref.storage.position(file) + (ref.start + start) * ref.itemsize)
        # readinto fills the tensor's own memory, without a bytes object in between.
        if file.readinto(buffer.numpy().data) != len(buffer):
            raise unreadable(ref.file, "it is truncated")
    if len(buffer) == ref.storage.size:
        _require_checksum(ref.storage, zlib.crc32(buffer.numpy().data))
    else:
        _require_intact(ref.storage)
    return buffer.view(getattr(torch, ref.dtype))


@cache
def _require_intact(storage: Storage) -> None:
    """Compare the checksum of a storage of which a part is read; once, because other parts of it follow."""
    found, left = 0, storage.size
    with storage.file.open("rb") as file:
        file.seek(storage.position(file))
        while part := file.read(min(left, BLOCK)):
            found, left = zlib.crc32(part, found), left - len(part)
    _require_checksum(storage, found)


def _require_checksum(storage: Storage, found: int) -> None:
    if storage.crc32 is not None and found != storage.crc32:
        raise unreadable(storage.file, DAMAGED)
