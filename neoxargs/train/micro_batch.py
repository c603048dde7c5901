"""A micro batch: its tensors by name, and the tuple in which DeepSpeed's pipeline engine passes them on.

In shapes, B is the number of sequences and S their length. Of preference pairs, a micro batch has both answers: first
all chosen ones, then the rejected ones in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class MicroBatch:
    """What the first layer and the loss read. A field is None if the run does not need it."""

    tokens: Tensor
    """(B, S), int64"""
    labels: Tensor
    """(B, S), int64: the next token of each position, IGNORED where it does not count toward the loss."""
    starts: Tensor | None = None
    """(B, S), int64: the position at which each token's document begins; None if documents are not separated."""
    factor: Tensor | None = None
    """(): the factor on the loss with `loss_average: tokens`."""
    reference: Tensor | None = None
    """(B): the reference model's log-probability of each sequence, in preference training."""
    rewards: Tensor | None = None
    """(B): the reward of each sequence, for KTO."""

    def each(self, change: Callable[[Tensor], Tensor]) -> MicroBatch:
        """Return the micro batch with every tensor changed."""
        values: list[Any] = [None if value is None else change(value) for value in vars(self).values()]
        return MicroBatch(*values)

    def cut(self, length: int) -> MicroBatch:
        """Return the same tokens and labels as sequences of a length that divides S: (B x S / length, length).

        A document that begins in an earlier piece begins with the piece. Not of preference training.
        """
        assert self.reference is None and self.rewards is None
        starts = self.starts
        if starts is not None:
            positions = torch.arange(starts.shape[1], device=starts.device)
            starts = (starts - positions // length * length).clamp(min=0).view(-1, length)
        return replace(self, tokens=self.tokens.view(-1, length), labels=self.labels.view(-1, length), starts=starts)

    def to(self, device: torch.device) -> MicroBatch:
        """Return a copy on the device. From pinned memory, the host does not wait for it."""
        return self.each(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> MicroBatch:
        """Return a copy in pinned memory; DataLoader calls it."""
        return self.each(Tensor.pin_memory)


def to_pipeline(batch: MicroBatch) -> tuple[Tensor | tuple[Tensor, Tensor], tuple[Tensor, ...]]:
    """Return what DeepSpeed's pipeline engine takes: the input of the first layer, and the second argument of the loss.

    The latter must be tensors only. An empty one stands for a field that is None, so that no other takes its place.
    """
    absent = batch.tokens.new_empty(0)
    fields = tuple(absent if value is None else value for value in vars(batch).values())
    return (batch.tokens if batch.starts is None else (batch.tokens, batch.starts)), fields


@dataclass
class PipelineLoss:
    """A loss as DeepSpeed's pipeline engine calls it. loss: takes the last layer's output and a `MicroBatch`."""

    loss: Callable[[Any, MicroBatch], Tensor]

    def __call__(self, output: Any, fields: tuple[Tensor, ...]) -> Tensor:
        """fields: as of `to_pipeline`."""
        values: list[Any] = [tensor if tensor.numel() else None for tensor in fields]
        return self.loss(output, MicroBatch(*values))
