"""Copies of activations between a GPU and pinned host memory that overlap with computation.

They run on a stream of their own. Layers are needed in the backward pass in the reverse of the order in which they were
stored, so while one is computed, the one stored before it is copied back.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(eq=False)
class HostCopy:
    """A tensor in pinned host memory, and its copy on the GPU while one exists."""

    memory: Tensor
    device: torch.device
    stored_before: weakref.ref[HostCopy] | None
    """The copy that was made before this one; weak, so that copies of earlier micro batches are not kept in memory."""
    on_gpu: tuple[Tensor, torch.cuda.Event] | None = None
    """The copy on the GPU, and the event after which it may be read."""


class OffloadedActivations:
    """Copies tensors of one GPU to the host and back."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self.last: weakref.ref[HostCopy] | None = None

    def store(self, x: Tensor, memory: Tensor) -> HostCopy:
        """Copy x to `memory`, which is pinned. Neither the host nor later kernels wait for the copy."""
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            memory.copy_(x, non_blocking=True)
        x.record_stream(self.stream)  # x's memory must not be reused before it has been read
        copy = HostCopy(memory, self.device, self.last)
        self.last = weakref.ref(copy)
        return copy

    def load(self, copy: HostCopy) -> Tensor:
        """Return the tensor on the GPU, and start copying the one that was stored before it."""
        tensor, copied = self._start(copy)
        before = copy.stored_before() if copy.stored_before else None
        # One layer ahead, so that this transfer overlaps with the backward pass of the layer needed now.
        if before is not None:
            self._start(before)
        # From here on only the caller holds the tensor, so its memory is freed after use.
        copy.on_gpu = None
        current = torch.cuda.current_stream(self.device)
        current.wait_event(copied)
        # It was allocated on the copying stream: without this its memory could be reused while the current stream reads
        # it.
        tensor.record_stream(current)
        return tensor

    def _start(self, copy: HostCopy) -> tuple[Tensor, torch.cuda.Event]:
        """Copy the tensor to the GPU unless that has been done."""
        if copy.on_gpu is None:
            # Without waiting for the current stream: `memory` was filled on this stream, so the order is kept.
            with torch.cuda.stream(self.stream):
                tensor = copy.memory.to(self.device, non_blocking=True)
            copy.on_gpu = tensor, self.stream.record_event()
        return copy.on_gpu
