"""Training steps and evaluation on DeepSpeed's two engines.

Both take the same micro batches and return the same loss on every rank: the mean over micro batches and data parallel
ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from neoxargs.train.deepspeed import patches
from neoxargs.train.engine.reports import StepReporter
from neoxargs.train.process.collectives import all_reduce
from neoxargs.train.process.mesh import Mesh

#: (tokens, labels), each (batch, seq).
MicroBatch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Result:
    """Result of one step; equal on every rank."""

    loss: float
    grad_norm: float | None
    skipped: bool
    """Whether the weights were not updated: fp16 gradients overflowed, or the step diverged."""
    overflowed: bool = False
    """Whether the reason was fp16, whose loss scale is lowered then."""
    reports: dict[str, float] = field(default_factory=dict)
    """Optional reports: series name -> value (see reports.py)."""


class Pipelined:
    """Steps on the pipeline engine (1F1B schedule)."""

    def __init__(self, engine: Any, reporter: StepReporter) -> None:
        self.deepspeed, self.reporter = engine, reporter

    @property
    def reads_data(self) -> bool:
        return bool(self.deepspeed.is_first_stage() or self.deepspeed.is_last_stage())

    def losses(self) -> list[Tensor]:
        """Return the sum of the losses of this step, on the last stage."""
        return [] if self.deepspeed.total_loss is None else [self.deepspeed.total_loss]

    def learning_rate(self) -> float:
        return _learning_rate(self.deepspeed)

    def train_step(self, batches: Iterator[MicroBatch] | None) -> Result:
        self.reporter.before_step()
        return _result(self.deepspeed, self.deepspeed.train_batch(self._on_device(batches)), self.reporter)

    def evaluate(self, batches: Iterator[MicroBatch] | None, count: int) -> float:
        """Mean loss over `count` batches of `train_batch_size` samples."""
        micro_batches = count * self.deepspeed.gradient_accumulation_steps()
        loss = self.deepspeed.eval_batch(self._on_device(batches), num_micro_batches=micro_batches)
        return float(loss)

    def _on_device(self, batches: Iterator[MicroBatch] | None) -> Iterator[MicroBatch] | None:
        """Copy each micro batch when DeepSpeed asks for it; DeepSpeed's own copy would wait for the GPU's queue."""
        return None if batches is None else (to_device(batch, self.deepspeed.device) for batch in batches)


class Plain:
    """Steps on the engine without a pipeline."""

    reads_data = True

    def __init__(self, engine: Any, reporter: StepReporter, mesh: Mesh) -> None:
        self.deepspeed, self.reporter, self.mesh = engine, reporter, mesh
        self._losses: list[Tensor] = []

    def losses(self) -> list[Tensor]:
        """Return the losses of the micro batches of this step so far."""
        return self._losses

    def learning_rate(self) -> float:
        return _learning_rate(self.deepspeed)

    def train_step(self, batches: Iterator[MicroBatch] | None) -> Result:
        assert batches is not None
        self.deepspeed.train()
        self.reporter.before_step()
        self._losses = []
        for _ in range(self.deepspeed.gradient_accumulation_steps()):
            loss = self._loss(next(batches))
            self._losses.append(loss.detach())
            self.deepspeed.backward(loss)
            self.deepspeed.step()
        result = _result(self.deepspeed, self._mean(self._losses), self.reporter)
        patches.monitor_loss(self.deepspeed, result.loss)
        return result

    @torch.no_grad()
    def evaluate(self, batches: Iterator[MicroBatch] | None, count: int) -> float:
        """Mean loss over `count` batches of `train_batch_size` samples."""
        assert batches is not None
        self.deepspeed.eval()
        micro_batches = count * self.deepspeed.gradient_accumulation_steps()
        return float(self._mean([self._loss(next(batches)) for _ in range(micro_batches)]))

    def _loss(self, batch: MicroBatch) -> Tensor:
        return self.deepspeed(*to_device(batch, self.deepspeed.device))  # type: ignore[no-any-return]

    def _mean(self, losses: list[Tensor]) -> Tensor:
        mean = torch.stack(losses).mean()
        if self.mesh.data.size > 1:
            all_reduce(mean, group=self.mesh.data.group)
            mean /= self.mesh.data.size
        return mean


def to_device(batch: MicroBatch, device: torch.device) -> MicroBatch:
    """Copy a micro batch to the device; from pinned memory, the copy does not wait for the device."""
    tokens, labels = (tensor.to(device, non_blocking=True) for tensor in batch)
    return tokens, labels


def _learning_rate(engine: Any) -> float:
    return float(engine.get_lr()[0]) * engine.optimizer.param_groups[0].get("width_mult", 1.0)  # type: ignore[no-any-return]


def _result(engine: Any, loss: Tensor, reporter: StepReporter) -> Result:
    norm, skipped = engine.get_global_grad_norm(), not engine.was_step_applied()
    overflowed = skipped and engine.fp16_enabled()
    return Result(float(loss), None if norm is None else float(norm), skipped, overflowed, reporter.after_step(skipped))
