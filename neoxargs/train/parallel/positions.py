"""Which positions of a sequence a rank has."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from neoxargs.train.process.mesh import ALONE, Axis


@dataclass(frozen=True)
class Positions:
    """The part of the positions that this rank has: of consecutive ones, or of two chunks for attention in a ring."""

    context: Axis = ALONE
    """The context parallel ranks."""
    sequence: Axis = ALONE
    """The tensor parallel ranks that divide the positions further, with sequence parallelism."""
    ring: bool = False
    """Whether a rank has the chunks r and 2n - 1 - r, of twice as many as there are context parallel ranks."""

    @property
    def chunks(self) -> tuple[int, ...]:
        """The numbers of this rank's chunks, of `count`."""
        rank = self.context.rank
        return (rank, 2 * self.context.size - 1 - rank) if self.ring else (rank,)

    @property
    def count(self) -> int:
        """The chunks of a sequence."""
        return len(self.chunks) * self.context.size

    def of(self, x: Tensor) -> Tensor:
        """Return what belongs to this rank's positions: (B, S, …) -> (B, S / ranks, …)."""
        if self.context.size > 1:
            pieces = x.chunk(self.count, dim=1)
            own = [pieces[number] for number in self.chunks]
            x = torch.cat(own, dim=1) if self.ring else own[0]
        return x if self.sequence.size == 1 else x.chunk(self.sequence.size, dim=1)[self.sequence.rank]

    def in_order(self, x: Tensor) -> Tensor:
        """Return what the context parallel ranks have, given one rank after the other, in the order of positions."""
        if not self.ring:
            return x
        pieces = x.chunk(self.count, dim=1)
        return torch.cat([*pieces[::2], *pieces[1::2][::-1]], dim=1)

    def numbers(self, own: int, device: torch.device | None = None) -> Tensor:
        """Return this rank's positions, of which there are `own`: (1, own)."""
        return self.of(torch.arange(self.context.size * self.sequence.size * own, device=device).unsqueeze(0))

    def first(self, own: int) -> int:
        """Return the first one of `own` positions in a row."""
        assert not self.ring
        return (self.context.rank * self.sequence.size + self.sequence.rank) * own


#: Those of a rank with whole sequences.
WHOLE = Positions()
