"""Log-probabilities of given tokens, from a model with any layout.

The model runs as in an evaluation during training, but with `ScoringLoss` in place of its loss, which stores the
log-probability of every label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from neoxargs.train.deepspeed.pipeline_module import is_pipeline_module
from neoxargs.train.engine.steps import Pipelined, Trainer
from neoxargs.train.losses.cross_entropy import IGNORED, LOGITS_AT_ONCE, Loss, Readout
from neoxargs.train.micro_batch import MicroBatch, to_pipeline
from neoxargs.train.parallel.communicate import gather_positions
from neoxargs.train.process.collectives import of_all_ranks
from neoxargs.train.process.mesh import Mesh

#: Another loss.
L = TypeVar("L")
#: Micro batches per pipeline stage that are in the pipeline at the same time.
IN_FLIGHT = 4


class Scored(NamedTuple):
    """The scores of a micro batch's labels."""

    labels: Tensor
    """(B, S)"""
    logs: Tensor
    """(B, S), log-probabilities in nats; 0 where the label is IGNORED"""
    likeliest: Tensor
    """(B, S), bool: whether the label is the most likely token; True where the label is IGNORED"""


class ScoringRow(NamedTuple):
    """A token sequence of which the last tokens are scored."""

    ids: list[int]
    """The tokens, at most seq_length + 1."""
    scored: int
    """Number of tokens to score."""


class ScoringLoss:
    """A loss that appends the scores of every micro batch to `results`."""

    def __init__(self, loss: Loss) -> None:
        self.loss, self.logits = loss, loss.logits
        self.results: list[Scored] = []

    def __call__(self, readout: Readout, batch: MicroBatch) -> Tensor:
        """Return the mean loss over the labels, in nats."""
        own = self.loss.positions
        labels_BS = own.of(batch.labels)
        # In slices of the sequence, because the logits of all positions would need too much memory.
        most = LOGITS_AT_ONCE.get(labels_BS.device.type, 2**27)
        step = max(1, most // (self.loss.vocabulary.padded * labels_BS.shape[0]))
        parts = [slice(start, start + step) for start in range(0, labels_BS.shape[1], step)]
        pairs = [self._score(Readout(readout.hidden[:, part], readout.weight), labels_BS[:, part]) for part in parts]
        logs_BS, likeliest_BS = (torch.cat(of_parts, dim=1) for of_parts in zip(*pairs, strict=True))
        # To the host, because the scores of a long task would fill the GPU.
        logs_BS = gather_positions(logs_BS, own)
        likeliest_BS = gather_positions(likeliest_BS.to(logs_BS.dtype), own).bool()
        self.results.append(Scored(batch.labels.cpu(), logs_BS.cpu(), likeliest_BS.cpu()))
        return -logs_BS.sum() / (batch.labels != IGNORED).sum().clamp(min=1)

    def _score(self, readout: Readout, labels_BS: Tensor) -> tuple[Tensor, Tensor]:
        logits_BSV, ignored_BS = self.loss.softmax_logits(readout).float(), labels_BS == IGNORED
        label_BS1 = labels_BS.masked_fill(ignored_BS, 0).unsqueeze(-1)
        logs_BS = logits_BSV.gather(-1, label_BS1).squeeze(-1) - logits_BSV.logsumexp(-1)
        return logs_BS.masked_fill(ignored_BS, 0), (logits_BSV.argmax(-1) == labels_BS) | ignored_BS


@contextmanager
def another_loss(module: nn.Module, change: Callable[[Loss], L]) -> Iterator[L]:
    """Let a model compute another loss within this. change: returns it for the present one."""
    holder: Any = module.loss_fn if is_pipeline_module(module) else module
    loss, holder.loss = holder.loss, change(holder.loss)
    try:
        yield holder.loss
    finally:
        holder.loss = loss


class Scorer:
    """Scores token sequences with a loaded model. Collective: every rank makes the same calls."""

    def __init__(self, trainer: Trainer, mesh: Mesh, micro_batch: int) -> None:
        self.trainer, self.mesh, self.micro_batch = trainer, mesh, micro_batch
        #: Number of micro batches per call of `run`. A pipeline fills and empties in each call, which takes as long as
        #: (stages - 1) micro batches.
        self.in_flight = IN_FLIGHT * mesh.pipe.size
        #: Whether this rank returns scores: one rank of those that have computed the same ones.
        self.reports = mesh.tensor.rank == mesh.context.rank == 0 and mesh.pipe.rank == mesh.pipe.size - 1

    @torch.no_grad()
    def run(self, batches: Iterator[MicroBatch] | None, count: int) -> list[Scored]:
        """Score `count` micro batches of equal shape; return the scores on ranks that report, others an empty list."""
        model: Any = self.trainer.deepspeed
        inputs = None if batches is None else (batch.to(model.device) for batch in batches)
        with another_loss(model.module, ScoringLoss) as loss:
            if isinstance(self.trainer, Pipelined):
                model.reset_activation_shape()  # earlier micro batches may have had another shape
                model.eval_batch(inputs and map(to_pipeline, inputs), num_micro_batches=count)
            else:
                assert inputs is not None
                for batch in islice(inputs, count):
                    model(**vars(batch))
        return loss.results if self.reports else []

    def score(self, rows: Sequence[ScoringRow]) -> list[tuple[float, bool]]:
        """Return for each row the log-probability (nats) of its last `scored` tokens, and whether each of these was the
        most likely token."""
        # The longest rows first: rows of similar length share a micro batch, which needs little padding.
        order = sorted(range(len(rows)), key=lambda index: -len(rows[index].ids))
        at_once = self.micro_batch * self.mesh.data.size * self.in_flight
        scores: dict[int, tuple[float, bool]] = {}
        for start in range(0, len(order), at_once):
            scores |= self._score(rows, order[start : start + at_once])
        merged = {index: score for of_rank in of_all_ranks(scores) for index, score in of_rank.items()}
        return [merged[index] for index in range(len(rows))]

    def _score(self, rows: Sequence[ScoringRow], chosen: Sequence[int]) -> dict[int, tuple[float, bool]]:
        """Return the scores of the chosen rows that this rank reports. The first chosen row must be the longest."""
        data, size = self.mesh.data, self.micro_batch
        count = -(-len(chosen) // (size * data.size))
        # -1 stands for an empty row, which fills the last micro batches.
        padded = [*chosen, *[-1] * (count * size * data.size - len(chosen))]
        micro_batches = [
            padded[start : start + size] for start in range(data.rank * size, len(padded), data.size * size)
        ]
        # - 1: the last id is only a label.
        empty, length = ScoringRow([], 0), max(1, len(rows[chosen[0]].ids) - 1)
        batches = (batch([rows[index] if index >= 0 else empty for index in part], length) for part in micro_batches)
        by_index: dict[int, tuple[float, bool]] = {}
        # Not strict: ranks that do not report have no results.
        for part, (_, logs, likeliest) in zip(micro_batches, self.run(batches, count), strict=False):
            scores = zip(logs.double().sum(1).tolist(), likeliest.all(1).tolist(), strict=True)
            by_index |= {index: score for index, score in zip(part, scores, strict=True) if index >= 0}
        return by_index


def batch(rows: Sequence[ScoringRow], length: int) -> MicroBatch:
    """Return rows of this length, padded on the right, where causal attention does not see it."""
    tokens_BS = torch.zeros(len(rows), length, dtype=torch.int64)
    labels_BS = torch.full_like(tokens_BS, IGNORED)
    for row, (ids, scored) in enumerate(rows):
        if scored:
            tokens_BS[row, : len(ids) - 1] = torch.tensor(ids[:-1])
            labels_BS[row, len(ids) - 1 - scored : len(ids) - 1] = torch.tensor(ids[-scored:])
    return MicroBatch(tokens_BS, labels_BS)


def windows(ids: Sequence[int], first: int, length: int) -> list[ScoringRow]:
    """Return rows that score each of `ids` exactly once.

    first: token before the first id. length: the model's sequence length. A last, shorter row is extended to the left,
    so that its tokens have as much context as the model takes.
    """
    tokens = [first, *ids]
    ends = [min(start + length, len(ids)) for start in range(0, len(ids), length)]
    return [
        ScoringRow(tokens[max(0, end - length) : end + 1], end - start)
        for start, end in zip([0, *ends], ends, strict=False)
    ]
