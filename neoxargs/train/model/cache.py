"""Keys and values of the tokens before, kept by every layer while text is generated.

Rows of a batch may differ in length. The first pass takes them padded on the right; what it keeps of the padding is
hidden until the tokens that come later overwrite it, each row at its own place.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Cache:
    """Of one batch and all layers of this rank. capacity: the most tokens that a row can have."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.begun = False
        """Has the first pass been?"""
        self.places: Tensor | None = None
        """Where the tokens of this pass stand, (batch, seq); None in the first pass, where that is where they are."""
        self.reach = 0
        """How many places of a row count by now."""
        self.kept: list[tuple[Tensor, Tensor]] = []
        """Of each layer in the order in which they run: (batch, key and value heads, capacity, head_dim)."""
        self.next = 0

    def begin(self, places: Tensor, reach: int) -> None:
        """Before every pass but the first."""
        self.places, self.reach, self.next = places, reach, 0

    def add(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """(batch, heads, seq, head_dim) of this pass -> those of all tokens so far."""
        if self.places is None:
            self.kept.append((self._room(key), self._room(value)))
            return key, value
        keys, values = self.kept[self.next]
        self.next += 1
        rows = torch.arange(len(key), device=key.device).unsqueeze(1)
        keys[rows, :, self.places], values[rows, :, self.places] = key.transpose(1, 2), value.transpose(1, 2)
        return keys[:, :, : self.reach], values[:, :, : self.reach]

    def keep(self, rows: Sequence[int]) -> None:
        """Drop the other rows of the batch."""
        self.kept = [(keys[list(rows)], values[list(rows)]) for keys, values in self.kept]

    def visible(self, window: int) -> Tensor:
        """(batch, 1, seq, keys): does the row's token see the column's, itself and `window` before it (0: all)?"""
        assert self.places is not None
        back = self.places[:, None, :, None] - torch.arange(self.reach, device=self.places.device)
        return (back >= 0) & (back <= window) if window else back >= 0

    def rows(self, whole: Tensor) -> Tensor:
        """Of (heads, seq, seq) for whole sequences what this pass needs: (batch, heads, seq, keys)."""
        return whole[:, self.places, : self.reach].transpose(0, 1)

    def _room(self, x: Tensor) -> Tensor:
        batch, heads, seq, width = x.shape
        room = x.new_zeros(batch, heads, self.capacity, width)
        room[:, :, :seq] = x
        return room


def attach(module: nn.Module, cache: Cache | None) -> None:
    """To every layer of this rank that asks where tokens stand; None takes it away."""
    for layer in module.modules():
        if hasattr(layer, "cache"):
            setattr(layer, "cache", cache)  # noqa: B010
