"""Which positions of a sequence a rank has."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from neoxargs.train.process.mesh import ALONE, Axis


def chunks_in_ring(place: int, size: int) -> tuple[int, int]:
    """Return the chunks, of twice as many as a ring has places, that are at one of them."""
    return place, 2 * size - 1 - place


@dataclass(frozen=True)
class Positions:
    """The part of the positions that this rank has: consecutive ones, or two chunks or a part of them for a ring."""

    context: Axis = ALONE
    """The context parallel ranks."""
    sequence: Axis = ALONE
    """The tensor parallel ranks that divide the positions further, with sequence parallelism."""
    ring: int = 1
    """The groups of as many consecutive context parallel ranks in a ring; 1 without. Group g of n divides the chunks g
    and 2n - 1 - g, of 2n, among its ranks."""

    @property
    def chunks(self) -> tuple[int, ...]:
        """The numbers of the chunks, of `count`, that this rank or its group has."""
        if self.ring == 1:
            return (self.context.rank,)
        return chunks_in_ring(self.context.rank // self.sharing, self.ring)

    @property
    def count(self) -> int:
        """The chunks of a sequence."""
        return self.context.size if self.ring == 1 else 2 * self.ring

    @property
    def sharing(self) -> int:
        """The ranks that divide the same chunks."""
        return 1 if self.ring == 1 else self.context.size // self.ring

    def of(self, x: Tensor) -> Tensor:
        """Return what belongs to this rank's positions: (B, S, …) -> (B, S / ranks, …)."""
        if self.context.size > 1:
            pieces = x.chunk(self.count, dim=1)
            own = [pieces[number] for number in self.chunks]
            x = torch.cat(own, dim=1) if len(own) > 1 else own[0]
        if self.sharing > 1:
            x = x.chunk(self.sharing, dim=1)[self.context.rank % self.sharing]
        return x if self.sequence.size == 1 else x.chunk(self.sequence.size, dim=1)[self.sequence.rank]

    def in_order(self, x: Tensor) -> Tensor:
        """Return what the context parallel ranks have, given one rank after the other, in the order of positions."""
        if self.ring == 1:
            return x
        pieces = x.chunk(self.count, dim=1)
        return torch.cat([*pieces[::2], *pieces[1::2][::-1]], dim=1)

    def numbers(self, own: int, device: torch.device | None = None) -> Tensor:
        """Return this rank's positions, of which there are `own`: (1, own)."""
        return self.of(torch.arange(self.context.size * self.sequence.size * own, device=device).unsqueeze(0))

    def runs(self, own: int) -> list[range]:
        """Return this rank's positions, of which there are `own`, as ranges."""
        numbers = self.numbers(own)[0]
        bounds = [0, *(numbers.diff() != 1).nonzero().flatten().add(1).tolist(), own]
        return [range(int(numbers[first]), int(numbers[last - 1]) + 1) for first, last in pairwise(bounds)]

    def first(self, own: int) -> int:
        """Return the first one of `own` positions in a row."""
        assert self.ring == 1
        return (self.context.rank * self.sequence.size + self.sequence.rank) * own


#: Those of a rank with whole sequences.
WHOLE = Positions()
