"""Cache of what the layers keep while text is generated: keys and values of attention, or the state of a recurrence.

Rows of a batch may differ in length. The first pass takes prompts padded on the right. Its entries for the padding are
masked until later tokens overwrite them, in each row at its own position. A recurrent layer skips the padding.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Shared = TypeVar("Shared")


class Cache:
    """What the layers of this rank keep of one batch. capacity: maximum number of tokens in a row."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.started = False
        """Whether the first pass has run."""
        self.positions: Tensor | None = None
        """Positions of this pass's tokens, (B, S); None in the first pass, where they are 0, 1, 2, ..."""
        self.length = 0
        """Number of cached positions that this pass may attend to, the maximum over all rows."""
        self.lengths: Tensor | None = None
        """Number of tokens in each row of the first pass, (B)."""
        self.entries: list[tuple[Tensor, ...]] = []
        """For each layer, in execution order, keys and values (B, K, capacity, H), or a recurrence's tensors."""
        self.next = 0
        """Index in `entries` of the layer that runs next."""
        self._of_pass: dict[Hashable, Any] = {}

    def begin(self, positions: Tensor, length: int) -> None:
        """Start a pass; the first pass needs no call.

        positions: (B, S), of this pass's tokens. length: tokens of the longest row, those of this pass included.
        """
        self.positions, self.length, self.next, self._of_pass = positions, length, 0, {}

    def once(self, key: Hashable, build: Callable[[], Shared]) -> Shared:
        """Return what `build` returns, made once in a pass after the first one, for all layers with this key."""
        if key not in self._of_pass:
            self._of_pass[key] = build()
        found: Shared = self._of_pass[key]
        return found

    def add(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store keys and values of this pass and return those of all tokens up to now.

        (B, K, S, H) -> (B, K, C, H).
        """
        if self.positions is None:
            free = (0, 0, 0, self.capacity - key.shape[2])
            self.entries.append((F.pad(key, free), F.pad(value, free)))
            # Not the stored tensors, which are as long as `capacity`: in the first pass tokens attend to each other
            # only.
            return key, value
        keys, values = self.entries[self.next]
        self.next += 1
        rows = self.once("rows", lambda: torch.arange(len(key), device=key.device).unsqueeze(1))
        # An index array on both sides of a slice moves the indexed dimensions to the front: (B, S, K, H).
        keys[rows, :, self.positions], values[rows, :, self.positions] = key.transpose(1, 2), value.transpose(1, 2)
        # Cut to the longest row, so that attention does not read the whole capacity.
        return keys[:, :, : self.length], values[:, :, : self.length]

    def state(self) -> tuple[Tensor, ...] | None:
        """Return what the recurrent layer that runs next kept in the pass before; None in the first pass."""
        return None if self.positions is None else self.entries[self.next]

    def keep(self, state: tuple[Tensor, ...]) -> None:
        """Store what a recurrent layer keeps for the next pass."""
        if self.positions is None:
            self.entries.append(state)
        else:
            self.entries[self.next] = state
            self.next += 1

    def padding(self, seq: int) -> Tensor | None:
        """(B, S): the tokens of this pass that are padding; None after the first pass, which has no padding."""
        if self.positions is not None or self.lengths is None:
            return None
        return torch.arange(seq, device=self.lengths.device) >= self.lengths.unsqueeze(1)

    def last(self, x: Tensor, count: int) -> Tensor:
        """Select the last `count` tokens of each row that are no padding.

        x: (B, count + S, …), the tokens of this pass after `count` others.
        """
        if self.positions is not None or self.lengths is None:
            return x[:, -count:]
        rows = torch.arange(len(x), device=x.device).unsqueeze(1)
        return x[rows, self.lengths.unsqueeze(1) + torch.arange(count, device=x.device)]

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Drop the other rows of the batch."""
        self.entries = [tuple(tensor[list(rows)] for tensor in entry) for entry in self.entries]

    def visible(self, window: int) -> Tensor:
        """(B, 1, S, C): whether a new token attends to a cached one.

        It attends to itself and to the `window` tokens before it; 0 means all tokens before it.
        """
        positions = self.positions
        assert positions is not None

        def build() -> Tensor:
            distance = positions[:, None, :, None] - torch.arange(self.length, device=positions.device)
            return (distance >= 0) & (distance <= window) if window else distance >= 0

        return self.once(("visible", window), build)

    def select(self, full: Tensor) -> Tensor:
        """Select this pass's rows of a mask or bias: (N, C, C) -> (B, N, S, C)."""
        return full[:, self.positions, : self.length].transpose(0, 1)


def attach(module: nn.Module, cache: Cache | None) -> None:
    """Set the `cache` attribute of every layer of this rank that has one; None removes the cache."""
    for layer in module.modules():
        if hasattr(layer, "cache"):
            setattr(layer, "cache", cache)  # noqa: B010
