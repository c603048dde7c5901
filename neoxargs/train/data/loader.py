"""From data sets to micro batches, in an order that depends on nothing but how many samples were consumed.

The samples of a global batch are the same for every layout: micro step after micro step, data parallel ranks take
neighbouring stretches. So a run resumed from its sample count, on any number of ranks, sees the data it would have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from neoxargs.train.kernels.cross_entropy import IGNORED
from neoxargs.train.process.mesh import Axis, Mesh
from neoxargs.train.process.setup import on_gpu

Part = Literal["train", "validation", "test"]


class Batch(NamedTuple):
    """A micro batch; the pair that DeepSpeed's pipeline takes."""

    tokens: Tensor
    """(batch, seq), int64"""
    labels: Tensor
    """(batch, seq), int64: the next tokens, IGNORED where the loss mask is 0."""


class Samples(Protocol):
    """A megatron-core data set; a sample holds `tokens`, `labels` and `loss_mask`, each (seq)."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Mapping[str, Tensor]: ...


@dataclass(frozen=True)
class Loader:
    """The three parts of the data, as the training loop asks for them. A part without data is None."""

    parts: Mapping[Part, Samples | None]
    mesh: Mesh
    micro_batch: int
    workers: int = 0
    """Processes that read ahead during training."""

    def train(self, consumed: int) -> Iterator[Batch] | None:
        """Endless micro batches from sample `consumed` on; None on a pipeline stage that reads no data."""
        return self._batches("train", consumed, self.workers)

    def held_out(self, part: Literal["validation", "test"]) -> Iterator[Batch] | None:
        """The same micro batches in every evaluation, so that losses can be compared and nothing need be saved."""
        return self._batches(part, 0, workers=0)

    def has(self, part: Part) -> bool:
        """Equal on every rank."""
        return self.parts.get(part) is not None

    def _batches(self, part: Part, consumed: int, workers: int) -> Iterator[Batch] | None:
        samples = self.parts.get(part)
        if samples is None or not reads_data(self.mesh):
            return None
        return batches(samples, consumed, self.mesh.data, self.micro_batch, workers)


def reads_data(mesh: Mesh) -> bool:
    """The first pipeline stage needs the tokens, the last one the labels."""
    return mesh.pipe.rank in (0, mesh.pipe.size - 1)


def batches(samples: Samples, consumed: int, data: Axis, micro_batch: int, workers: int = 0) -> Iterator[Batch]:
    """This rank's micro batches, for ever; after the last sample the first one follows."""
    indices = sample_indices(len(samples), consumed, data, micro_batch)
    if workers == 0:
        return (collate([samples[index] for index in chosen]) for chosen in indices)
    return iter(
        DataLoader(
            samples,  # type: ignore[arg-type]
            batch_sampler=_Endless(indices),
            num_workers=workers,
            collate_fn=collate,
            pin_memory=on_gpu(),
            generator=torch.Generator(),  # else it draws from the default one, and dropout differs after resuming
        )
    )


def sample_indices(length: int, consumed: int, data: Axis, micro_batch: int) -> Iterator[list[int]]:
    """Which samples each micro batch of this data parallel rank consists of."""
    start = consumed + data.rank * micro_batch
    while True:
        yield [(start + offset) % length for offset in range(micro_batch)]
        start += data.size * micro_batch


def collate(samples: list[Mapping[str, Tensor]]) -> Batch:
    """Samples, each (seq), to a micro batch (batch, seq)."""
    tokens, labels, mask = (torch.stack([sample[name] for sample in samples]) for name in _FIELDS)
    return Batch(tokens, labels.masked_fill_(mask == 0, IGNORED))


_FIELDS = ("tokens", "labels", "loss_mask")


class _Endless(torch.utils.data.Sampler[Any]):
    """An iterator as DataLoader wants it."""

    def __init__(self, indices: Iterator[list[int]]) -> None:
        self.indices = indices

    def __iter__(self) -> Iterator[list[int]]:
        return self.indices
