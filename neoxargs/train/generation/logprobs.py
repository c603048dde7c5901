"""Log-probabilities of given tokens, from a model on any layout.

The model runs as in an evaluation during training, with something in the place of its loss that keeps what every
label scored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from neoxargs.train.engine.steps import MicroBatch, Pipelined, Plain
from neoxargs.train.kernels.cross_entropy import IGNORED, LOGITS_AT_ONCE, Loss, Readout
from neoxargs.train.process.mesh import Mesh

#: Micro batches that go through a pipeline one behind the other, for each of its stages.
IN_FLIGHT = 4


class Scored(NamedTuple):
    """What a micro batch's labels scored."""

    labels: Tensor
    """(batch, seq)"""
    logs: Tensor
    """(batch, seq), log-probabilities in nats; 0 where the label is IGNORED"""
    likeliest: Tensor
    """(batch, seq): did no token score more? True where the label is IGNORED."""


class Row(NamedTuple):
    """Tokens of which the last ones are scored."""

    ids: list[int]
    """At most one more than the model's length."""
    scored: int
    """How many."""


class Scores:
    """A loss that keeps what every label scored."""

    def __init__(self, loss: Loss) -> None:
        self.loss, self.logits = loss, loss.logits
        self.kept: list[Scored] = []

    def __call__(self, readout: Readout, labels: Tensor) -> Tensor:
        most = LOGITS_AT_ONCE.get(labels.device.type, 2**27)
        step = max(1, most // (self.loss.vocabulary.padded * labels.shape[0]))
        parts = [slice(start, start + step) for start in range(0, labels.shape[1], step)]
        pairs = [self._score(Readout(readout.hidden[:, part], readout.weight), labels[:, part]) for part in parts]
        logs, likeliest = (torch.cat(found, dim=1) for found in zip(*pairs, strict=True))
        self.kept.append(Scored(labels.cpu(), logs.cpu(), likeliest.cpu()))
        return -logs.sum() / (labels != IGNORED).sum().clamp(min=1)

    def _score(self, readout: Readout, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits, ignored = self.loss.logits(readout).float(), labels == IGNORED
        label = labels.masked_fill(ignored, 0).unsqueeze(-1)
        logs = logits.gather(-1, label).squeeze(-1) - logits.logsumexp(-1)
        return logs.masked_fill(ignored, 0), (logits.argmax(-1) == labels) | ignored


class Scorer:
    """A loaded model that scores. Every rank makes the same calls."""

    def __init__(self, built: Pipelined | Plain, mesh: Mesh, micro_batch: int) -> None:
        self.built, self.mesh, self.micro_batch = built, mesh, micro_batch
        self.pipelined = isinstance(built, Pipelined)
        #: How many micro batches `run` should be given.
        self.in_flight = IN_FLIGHT * mesh.pipe.size
        #: Of the ranks that know the same scores, does this one tell them?
        self.speaks = mesh.tensor.rank == 0 and mesh.pipe.rank == mesh.pipe.size - 1
        module, name = built.deepspeed.module, "loss_fn" if self.pipelined else "loss"
        self.scores = Scores(getattr(module, name))
        setattr(module, name, self.scores)

    @torch.no_grad()
    def run(self, batches: Iterator[MicroBatch] | None, count: int) -> list[Scored]:
        """Take `count` micro batches of one shape through the model, on every rank; the scores, on those that speak."""
        self.scores.kept, model = [], self.built.deepspeed
        if self.pipelined:
            model.reset_activation_shape()  # those before may have been of another one
            model.eval_batch(batches, num_micro_batches=count)
        else:
            assert batches is not None
            for tokens, labels in islice(batches, count):
                model(tokens.to(model.device), labels.to(model.device))
        return self.scores.kept if self.speaks else []

    def score(self, rows: Sequence[Row]) -> list[tuple[float, bool]]:
        """Log-probability (nats) of each row's last `scored` tokens, and whether all of them were the likeliest."""
        order = sorted(range(len(rows)), key=lambda index: -len(rows[index].ids))
        at_once = self.micro_batch * self.mesh.data.size * self.in_flight
        found: dict[int, tuple[float, bool]] = {}
        for start in range(0, len(order), at_once):
            found |= self._score(rows, order[start : start + at_once])
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, found)
        merged = {index: score for each in everyone for index, score in each.items()}
        return [merged[index] for index in range(len(rows))]

    def _score(self, rows: Sequence[Row], chosen: Sequence[int]) -> dict[int, tuple[float, bool]]:
        """Those that this rank tells of the chosen rows, of which the first is the longest."""
        data, size = self.mesh.data, self.micro_batch
        count = -(-len(chosen) // (size * data.size))
        seats = [*chosen, *[-1] * (count * size * data.size - len(chosen))]
        mine = [seats[start : start + size] for start in range(data.rank * size, len(seats), data.size * size)]
        empty, length = Row([], 0), max(1, len(rows[chosen[0]].ids) - 1)
        batches = (batch([rows[index] if index >= 0 else empty for index in part], length) for part in mine)
        found: dict[int, tuple[float, bool]] = {}
        for part, (_, logs, likeliest) in zip(mine, self.run(batches, count), strict=False):
            scores = zip(logs.double().sum(1).tolist(), likeliest.all(1).tolist(), strict=True)
            found |= {index: score for index, score in zip(part, scores, strict=True) if index >= 0}
        return found


def batch(rows: Sequence[Row], length: int) -> MicroBatch:
    """Tokens and labels (rows, length), padded on the right, where nothing before it is influenced."""
    tokens = torch.zeros(len(rows), length, dtype=torch.int64)
    labels = torch.full_like(tokens, IGNORED)
    for row, (ids, scored) in enumerate(rows):
        if scored:
            tokens[row, : len(ids) - 1] = torch.tensor(ids[:-1])
            labels[row, len(ids) - 1 - scored : len(ids) - 1] = torch.tensor(ids[-scored:])
    return tokens, labels


def windows(ids: Sequence[int], first: int, length: int) -> list[Row]:
    """Rows that score each token once, the first one after `first`, and the last ones with as many tokens before them
    as a model of this length takes."""
    whole = [first, *ids]
    ends = [min(start + length, len(ids)) for start in range(0, len(ids), length)]
    return [
        Row(whole[max(0, end - length) : end + 1], end - start) for start, end in zip([0, *ends], ends, strict=False)
    ]
