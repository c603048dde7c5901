"""Where the inputs of recomputed layers wait for the backward pass: divided, laid side by side, or in main memory.

torch's checkpointing keeps them the way any operation keeps what its gradient needs, so hooks on saved tensors are
all it takes: what is kept is another form of the tensor, and the backward pass gets the tensor itself back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from neoxargs.registry.activations import Recompute
from neoxargs.train.process.mesh import ALONE, Axis


@dataclass
class StoredTensor:
    """What stands for a tensor meanwhile."""

    piece: Tensor
    """(elements of this rank's share,)"""
    shape: torch.Size
    device: torch.device
    slot: Slot | None = None


class Store:
    """`keep` and `give_back` undo each other, on every tensor parallel rank at the same time.

    slots: how many inputs a forward pass keeps; `contiguous_checkpointing` allocates room for so many at once.
    """

    def __init__(self, options: Recompute, tensor: Axis, slots: int) -> None:
        self.axis = tensor if options.partition_activations else ALONE
        self.in_main_memory = options.checkpoint_in_cpu
        self.contiguous, self.slots = options.contiguous_checkpointing, slots
        self.free: dict[tuple[int, torch.dtype, torch.device], list[Tensor]] = {}

    def wrap(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """`run`, a checkpoint function, with its inputs kept here."""

        def stored(*arguments: Any) -> Any:
            with saved_tensors_hooks(self.save, self.restore):
                return run(*arguments)

        return stored

    def save(self, x: Tensor) -> StoredTensor | Tensor:
        if not x.is_floating_point():  # masks and positions are small
            return x
        piece = self._partition(x.detach().reshape(-1))
        place = torch.device("cpu") if self.in_main_memory else x.device
        if self.contiguous:
            slot = Slot(self._free_pieces(piece, place))
            return StoredTensor(slot.memory.copy_(piece), x.shape, x.device, slot)
        pinned = place.type == "cpu" and x.is_cuda
        stored = torch.empty(piece.shape, dtype=piece.dtype, device=place, pin_memory=pinned)
        return StoredTensor(stored.copy_(piece), x.shape, x.device)

    def restore(self, stored: StoredTensor | Tensor) -> Tensor:
        if isinstance(stored, Tensor):
            return stored
        piece = stored.piece.to(stored.device)
        if self.axis.size == 1:
            return (piece if stored.slot is None else piece.clone()).view(stored.shape)
        whole = piece.new_empty(piece.numel() * self.axis.size)
        dist.all_gather(list(whole.chunk(self.axis.size)), piece, group=self.axis.group)
        return whole[: stored.shape.numel()].view(stored.shape)

    def _partition(self, flat: Tensor) -> Tensor:
        size = -(-flat.numel() // self.axis.size)
        mine = flat[self.axis.rank * size : (self.axis.rank + 1) * size]
        return F.pad(mine, (0, size - mine.numel()))

    def _free_pieces(self, piece: Tensor, place: torch.device) -> list[Tensor]:
        """Free pieces of one buffer; another is made when all are taken, as by several micro batches on the way."""
        free = self.free.setdefault((piece.numel(), piece.dtype, place), [])
        if not free:
            buffer = torch.empty(
                self.slots, piece.numel(), dtype=piece.dtype, device=place, pin_memory=place != piece.device
            )
            free += buffer.unbind()
        return free


class Slot:
    """A piece of a buffer, free again when nobody refers to it."""

    def __init__(self, free: list[Tensor]) -> None:
        self.free, self.memory = free, free.pop()

    def __del__(self) -> None:
        self.free.append(self.memory)
