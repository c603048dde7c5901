"""Training steps and evaluation on DeepSpeed's two engines.

Both take the same micro batches and return the same loss on every rank: the mean over micro batches and data parallel
ranks, each the mean over its own trained tokens, or the mean over all trained tokens (`loss_average`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from neoxargs.train.deepspeed import patches
from neoxargs.train.engine.non_finite import NonFinite, is_lowest_scale, keeps_overflowing
from neoxargs.train.engine.reports import StepReporter
from neoxargs.train.losses.cross_entropy import IGNORED, Targets
from neoxargs.train.model.documents import LayerInput, pack
from neoxargs.train.process.collectives import all_reduce
from neoxargs.train.process.mesh import Axis, Mesh

#: (tokens, labels), each (batch, seq), or these with the other fields of `Batch` of the loader.
MicroBatch = tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]
#: What DeepSpeed's engines take: the input of the first layer, and the labels.
Inputs = tuple[LayerInput, Targets]


@dataclass(frozen=True)
class Result:
    """Result of one step; equal on every rank."""

    loss: float
    grad_norm: float | None
    skipped: bool
    """True if the weights were not updated, because fp16 gradients overflowed or the step diverged."""
    overflowed: bool = False
    """Whether an fp16 overflow was the reason; a dynamic loss scale is then lowered."""
    scale_is_fixed: bool = False
    """Whether the fp16 loss scale is fixed, so that the steps that follow can overflow like this one."""
    diverged: bool = False
    """Whether the loss or a gradient was infinite or NaN, other than by an fp16 overflow."""
    where: str = ""
    """Where that was first; "" if it is not known."""
    reports: dict[str, float] = field(default_factory=dict)
    """Optional reports: series name -> value (see reports.py)."""


class HeldOut(NamedTuple):
    """Result of an evaluation; equal on every rank."""

    loss: float
    reports: dict[str, float]
    """What the loss measures besides its value: name -> mean."""


class Pipelined:
    """Steps on the pipeline engine (1F1B schedule)."""

    def __init__(
        self, engine: Any, reporter: StepReporter, mesh: Mesh, watch: NonFinite | None, by_token: bool = False
    ) -> None:
        """watch: None if the engine is not trained.

        by_token: the loss is the mean over all trained tokens of a batch (`loss_average: tokens`).
        """
        self.deepspeed, self.reporter, self.watch = engine, reporter, watch
        self.feed = Feed(engine, mesh.data, by_token)

    @property
    def reads_data(self) -> bool:
        return bool(self.deepspeed.is_first_stage() or self.deepspeed.is_last_stage())

    def losses(self) -> list[Tensor]:
        """Return the sum of the losses of this step, on the last stage."""
        # DeepSpeed adds up the losses on the last stage only; elsewhere this stays None.
        return [] if self.deepspeed.total_loss is None else [self.deepspeed.total_loss]

    def learning_rate(self) -> float:
        return _learning_rate(self.deepspeed)

    def train_step(self, batches: Iterator[MicroBatch] | None) -> Result:
        """Take one step with the next `gradient_accumulation_steps` micro batches. batches: None on middle stages."""
        self.reporter.before_step()
        return _step(self, lambda: self.deepspeed.train_batch(self._inputs(batches)))

    def evaluate(self, batches: Iterator[MicroBatch] | None, count: int) -> HeldOut:
        """Return the means over `count` batches of `train_batch_size` samples."""
        return _held_out(self, batches, count)

    def mean_loss(self, batches: Iterator[MicroBatch] | None, count: int) -> float:
        """Mean loss over `count` micro batches of each data parallel rank, without dropout."""
        return float(self.deepspeed.eval_batch(self._inputs(batches), num_micro_batches=count))

    def _inputs(self, batches: Iterator[MicroBatch] | None) -> Iterator[Inputs] | None:
        """Copy each micro batch when DeepSpeed asks for it; DeepSpeed's own copy would wait for the GPU's queue."""
        return None if batches is None else self.feed.inputs(batches)


class Plain:
    """Steps on the engine without a pipeline."""

    reads_data = True

    def __init__(
        self, engine: Any, reporter: StepReporter, mesh: Mesh, watch: NonFinite | None, by_token: bool = False
    ) -> None:
        """watch, by_token: as of `Pipelined`."""
        self.deepspeed, self.reporter, self.mesh, self.watch = engine, reporter, mesh, watch
        self.feed = Feed(engine, mesh.data, by_token)
        self._losses: list[Tensor] = []

    def losses(self) -> list[Tensor]:
        """Return the losses of the micro batches of this step so far, each ()."""
        return self._losses

    def learning_rate(self) -> float:
        return _learning_rate(self.deepspeed)

    def train_step(self, batches: Iterator[MicroBatch] | None) -> Result:
        """Take one step with the next `gradient_accumulation_steps` micro batches of this rank. Collective."""
        # None is for the middle stages of a pipeline.
        assert batches is not None
        self.deepspeed.train()
        self.reporter.before_step()
        self._losses = []
        inputs = self.feed.inputs(batches)

        def take() -> Tensor:
            for _ in range(self.deepspeed.gradient_accumulation_steps()):
                loss = self._loss(next(inputs))
                self._losses.append(loss.detach())
                self.deepspeed.backward(loss)
                # Called for every micro batch; DeepSpeed updates the weights after the last one.
                self.deepspeed.step()
            return self._mean(self._losses)

        result = _step(self, take)
        patches.monitor_loss(self.deepspeed, result.loss)
        return result

    def evaluate(self, batches: Iterator[MicroBatch] | None, count: int) -> HeldOut:
        """Return the means over `count` batches of `train_batch_size` samples."""
        return _held_out(self, batches, count)

    @torch.no_grad()
    def mean_loss(self, batches: Iterator[MicroBatch] | None, count: int) -> float:
        """Mean loss over `count` micro batches of each data parallel rank, without dropout."""
        assert batches is not None
        self.deepspeed.eval()
        inputs = self.feed.inputs(batches)
        return float(self._mean([self._loss(next(inputs)) for _ in range(count)]))

    def _loss(self, inputs: Inputs) -> Tensor:
        return self.deepspeed(*inputs)  # type: ignore[no-any-return]

    def _mean(self, losses: list[Tensor]) -> Tensor:
        mean = torch.stack(losses).mean()
        if self.mesh.data.size > 1:
            all_reduce(mean, group=self.mesh.data.group)
            mean /= self.mesh.data.size
        return mean


@dataclass(frozen=True)
class Feed:
    """Copies micro batches to the device, and weights their losses for the mean over all trained tokens."""

    engine: Any
    data: Axis
    by_token: bool

    def inputs(self, batches: Iterator[MicroBatch]) -> Iterator[Inputs]:
        """Yield the inputs of the engine. With `by_token`, those of a whole step are read ahead. Collective then."""
        if not self.by_token:
            # This exhausts the batches, so the loop below ends at once.
            yield from (self._with_rewards(batch) for batch in batches)
        copied = (to_device(batch, self.engine.device) for batch in batches)
        while step := list(islice(copied, self.engine.gradient_accumulation_steps())):
            yield from self._weighted(step)

    def _with_rewards(self, batch: MicroBatch) -> Inputs:
        """Copy a micro batch; in preference training, the targets include reference log-probabilities and rewards."""
        tokens, labels = to_device(batch, self.engine.device)
        more = [tensor.to(self.engine.device, non_blocking=True) for tensor in batch[3:] if tensor is not None]
        return tokens, (labels, *more) if more else labels

    def _weighted(self, step: list[tuple[LayerInput, Tensor]]) -> Iterator[Inputs]:
        """Give each micro batch the factor by which the mean over micro batches and replicas is that over tokens."""
        counts = torch.stack([(labels != IGNORED).sum() for _, labels in step])
        total = counts.sum()
        if self.data.size > 1:
            all_reduce(total, group=self.data.group)
        # DeepSpeed divides by micro batches and replicas. clamp: every label of a step may be masked.
        factors = counts * (len(step) * self.data.size) / total.clamp(min=1)
        for (tokens, labels), factor in zip(step, factors, strict=True):
            yield tokens, (labels, factor)


def to_device(batch: MicroBatch, device: torch.device) -> tuple[LayerInput, Tensor]:
    """Copy a micro batch, and return the first layer's input and the labels. From pinned memory, it does not wait."""
    tokens, labels, *starts = (tensor.to(device, non_blocking=True) for tensor in batch[:3] if tensor is not None)
    return pack(tokens, starts[0] if starts else None), labels


def _held_out(built: Pipelined | Plain, batches: Iterator[MicroBatch] | None, count: int) -> HeldOut:
    built.reporter.before_evaluation()
    loss = built.mean_loss(batches, count * built.deepspeed.gradient_accumulation_steps())
    return HeldOut(loss, built.reporter.after_evaluation())


def _learning_rate(engine: Any) -> float:
    # With muP, each group's rate was divided by its `width_mult`; reported is the schedule's.
    return float(engine.get_lr()[0]) * engine.optimizer.param_groups[0].get("width_mult", 1.0)  # type: ignore[no-any-return]


def _step(built: Pipelined | Plain, take: Callable[[], Tensor]) -> Result:
    """Take a step, of which `take` returns the loss; raise Problems if fp16 overflows at the lowest loss scale."""
    engine, watch = built.deepspeed, built.watch
    assert watch is not None
    watch.begin_step()
    try:
        loss, found = watch.read(take())
    except Exception as error:
        if engine.fp16_enabled() and is_lowest_scale(error):
            raise keeps_overflowing(engine.optimizer.loss_scale, watch.describe([])) from error
        raise
    norm, skipped = engine.get_global_grad_norm(), not engine.was_step_applied()
    overflowed = skipped and engine.fp16_enabled()
    diverged = not overflowed and (found or not math.isfinite(loss))
    where = watch.describe(built.losses()) if diverged else ""
    reports = built.reporter.after_step(skipped)
    fixed = engine.fp16_enabled() and not engine.dynamic_loss_scale()
    return Result(loss, None if norm is None else float(norm), skipped, overflowed, fixed, diverged, where, reports)
