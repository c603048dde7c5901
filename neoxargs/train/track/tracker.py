"""What a run tells its observers, and when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Split = Literal["validation", "test"]


@dataclass(frozen=True)
class Run:
    """What is known before the first step."""

    folder: Path
    """`run_dir`."""
    iterations: int
    """The iteration at which the run ends."""
    start: int
    """Iterations already done by the checkpoint it continues; 0 for a fresh run."""
    tokens_per_step: int
    samples_per_step: int
    ranks: int
    parameters: int
    flops_per_token: float
    """Forward and backward."""
    peak_tflops: float | None = None
    """What one rank's device can do at most, in 10^12 operations a second."""
    unigram_entropy: float | None = None
    """Loss, in nats per token, of a model that knows only how often each token occurs."""


@dataclass(frozen=True)
class Step:
    """One iteration: `train_batch_size` samples and one update."""

    iteration: int
    """Counted from 1: how many are done."""
    loss: float
    """Mean over all tokens of the batch, in nats."""
    lr: float
    grad_norm: float | None
    """Before clipping; None where DeepSpeed does not compute it."""
    seconds: float
    elapsed: float
    """Seconds spent in steps so far, those before a resumption included."""
    skipped: bool = False
    """fp16 found an overflow, halved its loss scale and left the weights alone."""
    memory: int | None = None
    """Bytes that the main rank has taken at most so far: of tensors on a GPU, of everything on a CPU."""
    reports: Mapping[str, float] = field(default_factory=dict)
    """Whatever else was asked for, such as `gradient_norms/…`: series name -> value."""


@dataclass(frozen=True)
class Evaluation:
    """The loss on held-out samples after `iteration` iterations."""

    iteration: int
    split: Split
    loss: float


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    iteration: int
    reason: str
    """A few words; "" when all iterations are done."""
    checkpoint: Path | None


class Tracker:
    """Override the moments you want to observe."""

    def on_start(self, run: Run) -> None: ...

    def on_step(self, step: Step) -> None: ...

    def on_eval(self, evaluation: Evaluation) -> None: ...

    def on_save(self, iteration: int, folder: Path) -> None: ...

    def on_end(self, outcome: Outcome) -> None: ...
