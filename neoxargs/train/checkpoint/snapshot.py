"""Copies of weights and optimizer states in host memory, which a thread writes while training goes on."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

from neoxargs.train.process.setup import on_gpu

#: Where the elements of a tensor are, and how they are read: two tensors with the same key are one.
Key = tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype]


class Snapshot:
    """Copies into buffers that the next checkpoint uses again: allocating memory takes longer than copying.

    Buffers for tensors of a GPU are pinned, so that the copies overlap with each other and with computation.
    """

    def __init__(self) -> None:
        self.buffers: list[Tensor] = []
        self.used = 0

    def start(self) -> None:
        """Allow all buffers to be overwritten."""
        self.used = 0

    def of(self, value: Any) -> Any:
        """Return a copy of an object that torch.save can write, with all of its tensors in host memory.

        Tensors that are the same elements stay the same in the copy, as tied weights. Tensors that only share a larger
        storage become separate: their files are as large together.
        """
        return self._copy(value, {})

    def wait(self) -> None:
        """Wait until the copies are complete."""
        if on_gpu():
            # The copies were queued on this stream.
            torch.cuda.current_stream().synchronize()

    def _copy(self, value: Any, seen: dict[Key, Tensor]) -> Any:
        if isinstance(value, Tensor):
            return self._copy_tensor(value, seen)
        if isinstance(value, dict):
            copied = copy.copy(value)
            copied.update((key, self._copy(item, seen)) for key, item in value.items())
            if isinstance(value, OrderedDict):  # state_dict() adds an attribute, which copy.copy leaves out
                vars(copied).update(vars(value))
            return copied
        if type(value) in (list, tuple):
            return type(value)(self._copy(item, seen) for item in value)
        return copy.deepcopy(value)

    def _copy_tensor(self, tensor: Tensor, seen: dict[Key, Tensor]) -> Tensor:
        source = tensor.detach()
        key = source.data_ptr(), tuple(source.shape), source.stride(), source.dtype
        # Empty tensors all have address 0: their keys can be equal by chance.
        if key not in seen or not source.numel():
            seen[key] = self._buffer(source).copy_(source, non_blocking=True)
        copied = seen[key]
        return nn.Parameter(copied, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else copied

    def _buffer(self, source: Tensor) -> Tensor:
        number, self.used = self.used, self.used + 1
        if number == len(self.buffers):
            self.buffers.append(torch.empty(0))
        kept = self.buffers[number]
        if kept.shape != source.shape or kept.dtype != source.dtype:
            kept = torch.empty(source.shape, dtype=source.dtype, pin_memory=source.is_cuda)
            self.buffers[number] = kept
        return kept
