"""Micro batches from data sets, in an order that depends only on the number of consumed samples.

The samples of a global batch are the same on every layout: in each micro step, data parallel ranks take adjacent
ranges of samples. A run resumed from its sample count therefore sees the same data on any number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from neoxargs.base.problems import Problem, Problems
from neoxargs.files.token_files.sources import Part
from neoxargs.processes.workers import end_workers_at_exit, obey_the_parent_only
from neoxargs.train.batches.comparison import Comparison
from neoxargs.train.batches.references import References
from neoxargs.train.losses.cross_entropy import IGNORED
from neoxargs.train.micro_batch import MicroBatch
from neoxargs.train.model.soft_prompt.prompt import make_room
from neoxargs.train.process.mesh import Axis, Mesh
from neoxargs.train.process.setup import on_gpu


class Samples(Protocol):
    """A data set. A sample has `tokens`, `labels` and `loss_mask`, each (S), and perhaps `starts`, as in `MicroBatch`.

    A preference pair has them as (2, S), and `reference` (2). A rated answer also has `reference` and `rewards`, ().
    """

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Mapping[str, Tensor]: ...


@dataclass(frozen=True)
class Loader:
    """Micro batches of the train, validation and test splits, and of named sets. A part without data is None."""

    parts: Mapping[Part, Samples | None]
    mesh: Mesh
    micro_batch: int
    workers: int = 0
    """Number of processes that read ahead during training; 0 reads in this process."""
    samples_per_evaluation: int = 0
    """Number of samples per evaluation, if each continues where the last one ended; 0 if all use the same samples."""
    drops_last: bool = False
    """Start over after the last micro batch that is full on all ranks, as GPT-NeoX does, not after the last sample."""
    prompt: int = 0
    """Number of positions at the beginning of every sample that a soft prompt occupies."""
    references: References = field(default_factory=References)
    """The reference model's log-probabilities in preference training."""
    comparison: Comparison = field(default_factory=Comparison)
    """Compares the token files with their checksums meanwhile."""
    extend: Callable[[int], Samples] | None = None
    """Returns the training data with at least so many samples, if it can have them. Collective."""
    starts_over: bool = True
    """Whether training goes on with the first sample after the last one; otherwise it ends there."""

    def reaching(self, last: int) -> Loader:
        """Return this loader with training data up to a sample, if it can have so many samples. Collective.

        last: the number of the sample after the last one.
        """
        samples, step = self.parts.get("train"), self._step("train")
        if samples is None or self.extend is None or last <= usable_length(len(samples), step):
            return self
        return replace(self, parts={**self.parts, "train": self.extend(last + -last % step)})

    def ends_before(self, last: int) -> bool:
        """Return whether training cannot go on to a sample; `last` as in `reaching`. Equal on every rank."""
        samples = self.parts.get("train")
        return not self.starts_over and samples is not None and len(samples) < last

    def _step(self, part: Part) -> int:
        """Return how many samples at the end of a part are read together, or else not before it starts over."""
        over = self.drops_last and (part != "train" or self.starts_over)
        return self.micro_batch * self.mesh.samples.size if over else 1

    def train(self, consumed: int) -> Iterator[MicroBatch] | None:
        """Return endless micro batches from sample `consumed` on; None on a pipeline stage that reads no data."""
        return self._batches("train", consumed, self.workers)

    def held_out(self, part: Part, evaluation: int = 0) -> Iterator[MicroBatch] | None:
        """Return the micro batches of an evaluation. evaluation: how many came before it since the run began."""
        return self._batches(part, evaluation * self.samples_per_evaluation, workers=0)

    def has(self, part: Part) -> bool:
        """Whether the split has data; equal on every rank."""
        return self.parts.get(part) is not None

    def _batches(self, part: Part, consumed: int, workers: int) -> Iterator[MicroBatch] | None:
        samples = self.parts.get(part)
        if samples is None or not reads_data(self.mesh):
            return None
        found = batches(samples, consumed, self.mesh.samples, self.micro_batch, workers, self._step(part))
        if not self.prompt:
            return found
        return (make_room(batch, self.prompt) for batch in found)


def reads_data(mesh: Mesh) -> bool:
    """Whether this rank reads data: the first pipeline stage needs the tokens, the last one the labels."""
    return mesh.pipe.rank in (0, mesh.pipe.size - 1)


def batches(
    samples: Samples, consumed: int, data: Axis, micro_batch: int, workers: int = 0, step: int = 1
) -> Iterator[MicroBatch]:
    """Yield this rank's micro batches endlessly; after the last sample, start over with the first.

    step: as of `usable_length`.
    """
    length = usable_length(len(samples), step)
    indices = sample_indices(length, consumed, data, micro_batch)
    if workers == 0:
        return (collate([samples[index] for index in chosen]) for chosen in indices)
    end_workers_at_exit()
    loader = iter(
        DataLoader(
            _OrProblems(samples),
            sampler=indices,
            batch_size=None,  # `indices` are those of whole batches
            num_workers=workers,
            worker_init_fn=_start_worker,
            pin_memory=on_gpu(),
            # Without a generator, DataLoader draws from the default one, and dropout masks would differ after resuming.
            generator=torch.Generator(),
        )
    )
    return (_without_problems(batch) for batch in loader)


class _Refused(NamedTuple):
    """What a worker process returns in place of a batch; torch raises exceptions of workers with other arguments."""

    problems: list[Problem]


class _OrProblems(torch.utils.data.Dataset[MicroBatch | _Refused]):
    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def __getitem__(self, indices: list[int]) -> MicroBatch | _Refused:
        try:
            return collate([self.samples[index] for index in indices])
        except Problems as problems:
            return _Refused(problems.problems)


def _without_problems(batch: MicroBatch | _Refused) -> MicroBatch:
    if isinstance(batch, _Refused):
        raise Problems(batch.problems)
    return batch


def usable_length(length: int, step: int) -> int:
    """Return after how many samples of a data set its first one follows: the last ones that fill no step are dropped.

    A data set that is smaller than a step is kept whole, because nothing would be left of it.
    """
    return length - length % step if length > step else length


def _start_worker(worker: int) -> None:
    obey_the_parent_only()


def sample_indices(length: int, consumed: int, data: Axis, micro_batch: int) -> Iterator[list[int]]:
    """Yield the sample indices of each micro batch of this data parallel rank."""
    start = consumed + data.rank * micro_batch
    while True:
        yield [(start + offset) % length for offset in range(micro_batch)]
        start += data.size * micro_batch


def collate(samples: list[Mapping[str, Tensor]]) -> MicroBatch:
    """Stack samples, each (S), to a micro batch (B, S); of pairs, (2, S), first all chosen answers."""
    rows = {name: torch.stack([sample[name] for sample in samples]) for name in _FIELDS if name in samples[0]}
    if rows["tokens"].dim() == 3:
        rows = {name: values.transpose(0, 1).flatten(0, 1) for name, values in rows.items()}
    rows["labels"].masked_fill_(rows.pop("loss_mask") == 0, IGNORED)
    return MicroBatch(**rows)


_FIELDS = ("tokens", "labels", "loss_mask", "starts", "reference", "rewards")
