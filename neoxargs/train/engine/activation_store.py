"""Storage of the inputs of recomputed layers: partitioned over ranks, in contiguous buffers, or in host memory.

torch's checkpointing saves its inputs like any operation saves tensors for the backward pass. Hooks on saved tensors
therefore suffice: one replaces the tensor by its stored form, the other restores it for the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from neoxargs.registry.activations import Recompute
from neoxargs.train.engine.offloaded_activations import HostCopy, OffloadedActivations
from neoxargs.train.process.mesh import ALONE, Axis


@dataclass
class StoredTensor:
    """Stored form of a tensor between the forward and the backward pass."""

    piece: Tensor
    """One-dimensional: the elements that this rank stores."""
    shape: torch.Size
    device: torch.device
    slot: Slot | None = None
    copy: HostCopy | None = None
    """The copy in host memory of a tensor from a GPU; None for other tensors."""


class Store:
    """Saves and restores tensors; every tensor parallel rank must call both in the same order.

    slots: number of inputs that one forward pass saves; `contiguous_checkpointing` allocates a buffer for that many.
    """

    def __init__(self, options: Recompute, tensor: Axis, slots: int) -> None:
        self.axis = tensor if options.partition_activations else ALONE
        self.in_host_memory = options.checkpoint_in_cpu
        self.contiguous, self.slots = options.contiguous_checkpointing, slots
        self.free: dict[tuple[int, torch.dtype, torch.device], list[Tensor]] = {}
        self.copies = cache(OffloadedActivations)

    def wrap(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return the checkpoint function `run` with its inputs saved in this store."""

        def stored(*arguments: Any) -> Any:
            with saved_tensors_hooks(self.save, self.restore):
                return run(*arguments)

        return stored

    def save(self, x: Tensor) -> StoredTensor | Tensor:
        """Return the stored form of x; integer and bool tensors (positions, masks) are small and returned as is."""
        if not x.is_floating_point():
            return x
        piece = self._partition(x.detach().reshape(-1))
        place = torch.device("cpu") if self.in_host_memory else x.device
        leaves_gpu = place.type == "cpu" and x.is_cuda
        slot = Slot(self._free_pieces(piece, place)) if self.contiguous else None
        memory = slot.memory if slot else _allocate(piece.shape, piece.dtype, place, leaves_gpu)
        copy = self.copies(x.device).store(piece, memory) if leaves_gpu else None
        if copy is None:
            memory.copy_(piece)
        return StoredTensor(memory, x.shape, x.device, slot, copy)

    def restore(self, stored: StoredTensor | Tensor) -> Tensor:
        """Return the tensor that `save` was given."""
        if isinstance(stored, Tensor):
            return stored
        piece = stored.piece if stored.copy is None else self.copies(stored.device).load(stored.copy)
        if self.axis.size == 1:
            # A clone, because the slot's memory is reused as soon as the slot is dropped.
            return (piece.clone() if stored.slot and stored.copy is None else piece).view(stored.shape)
        full = piece.new_empty(piece.numel() * self.axis.size)
        dist.all_gather(list(full.chunk(self.axis.size)), piece, group=self.axis.group)
        return full[: stored.shape.numel()].view(stored.shape)

    def _partition(self, flat: Tensor) -> Tensor:
        # Rounded up, because all_gather needs pieces of equal size; the last ones are padded.
        size = -(-flat.numel() // self.axis.size)
        local = flat[self.axis.rank * size : (self.axis.rank + 1) * size]
        return F.pad(local, (0, size - local.numel()))

    def _free_pieces(self, piece: Tensor, place: torch.device) -> list[Tensor]:
        """Return the free pieces of the buffers for tensors like `piece`, on the device `place`.

        If none is free, as with several micro batches in flight, another buffer is allocated.
        """
        free = self.free.setdefault((piece.numel(), piece.dtype, place), [])
        if not free:
            free += _allocate((self.slots, piece.numel()), piece.dtype, place, place != piece.device).unbind()
        return free


def _allocate(shape: Sequence[int], dtype: torch.dtype, place: torch.device, pinned: bool) -> Tensor:
    """Return uninitialised memory. pinned: only between pinned memory and a GPU can copies overlap with computation."""
    return torch.empty(shape, dtype=dtype, device=place, pin_memory=pinned)


class Slot:
    """A piece of a buffer, which becomes free again when the last reference to the slot is dropped."""

    def __init__(self, free: list[Tensor]) -> None:
        self.free, self.memory = free, free.pop()

    def __del__(self) -> None:
        self.free.append(self.memory)
