"""Means over a step or an evaluation of values that single micro batches give, such as what a loss measures."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from neoxargs.train.process.mesh import Mesh


class Means:
    """For each name, the sum of the values that were added, and their count.

    names: all names; equal on every rank. Each comes from one pipeline stage, or from layers of several.
    """

    def __init__(self, names: Collection[str] = ()) -> None:
        self.names = names
        #: Name -> (2): the sum of the values, and of what they count.
        self._sums: dict[str, Tensor] = {}

    def clear(self) -> None:
        """Forget what was added."""
        self._sums.clear()

    def add(self, name: str, value: Tensor, count: Tensor) -> None:
        """Add the sum of `count` values; both ()."""
        both = torch.stack((value, count))
        self._sums[name] = self._sums[name] + both if name in self._sums else both

    def add_samples(self, values: Mapping[str, tuple[Tensor, Tensor | None]]) -> None:
        """Add those of a micro batch: name -> values of its samples, and which of them count; None for all."""
        for name, (of_samples, counts) in values.items():
            counts = torch.ones_like(of_samples) if counts is None else counts.to(of_samples)
            self.add(name, (of_samples.detach() * counts).sum(), counts.sum())

    def over_ranks(self, mesh: Mesh, device: torch.device) -> dict[str, float]:
        """Return name -> mean, without those of which nothing was counted. Collective, unless there are no names."""
        return self.of(self.sums(mesh, device).flatten().tolist())

    def sums(self, mesh: Mesh, device: torch.device) -> Tensor:
        """Return (names, 2): the sums over all ranks, which `of` divides. Collective, unless there are no names."""
        none = torch.zeros(2, device=device)
        if not self.names:
            return none[:0]
        total = torch.stack([self._sums.get(name, none) for name in self.names])
        # Not over tensor parallel ranks, which all compute the same.
        for axis in (mesh.pipe, mesh.data):
            if axis.size > 1:
                dist.all_reduce(total, group=axis.group)
        return total

    def of(self, sums: Sequence[float]) -> dict[str, float]:
        """Return name -> mean, of `sums` as numbers of the host, flat."""
        found = zip(self.names, sums[::2], sums[1::2], strict=True)
        return {name: value / count for name, value, count in found if count}
