"""Numbers that a device computes, read by the host later than they are asked for."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Reading:
    """Copies of tensors of numbers to the host. The copy takes its place in the device's queue; only `read` waits.

    tensors: of any shapes, all on `device`.
    """

    def __init__(self, tensors: Sequence[Tensor], device: torch.device) -> None:
        self.sizes = [tensor.numel() for tensor in tensors]
        # In fp64, which has every number of fp32 and every count.
        numbers = torch.cat([tensor.detach().flatten().double() for tensor in tensors])
        self.event = None
        if device.type == "cuda":
            pinned = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            numbers = pinned.copy_(numbers, non_blocking=True)
            self.event = torch.cuda.Event()
            self.event.record()
        self.numbers = numbers

    def read(self) -> list[list[float]]:
        """Return the numbers of each tensor, flat."""
        if self.event is not None:
            self.event.synchronize()
        return [part.tolist() for part in self.numbers.split(self.sizes)]
