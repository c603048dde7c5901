"""The interface of trackers: the events of a run and their data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path

from neoxargs.targets.planned import Planned


@dataclass(frozen=True)
class Run:
    """Properties of a run that are known before its first step."""

    folder: Path
    """`run_dir`."""
    iterations: int
    """The iteration at which the run ends (`train_iters`)."""
    start: int
    """Iteration of the checkpoint that the run continues; 0 for a new run."""
    tokens_per_sample: int
    samples: int
    """Samples that are consumed when the run ends."""
    ranks: int
    parameters: int
    flops_per_token: float
    """Floating point operations per token, forward and backward."""
    peak_tflops: float | None = None
    """Peak throughput of one rank's device, in TFLOP/s; None if unknown."""
    unigram_entropy: float | None = None
    """Loss in nats per token of a model that knows only the frequency of each token; None if unknown."""
    has_perplexity: bool = True
    """Whether the loss is a cross entropy, whose exponential is the perplexity."""
    batch_size_changes: bool = False
    flops_by_length: Mapping[int, float] = field(default_factory=dict)
    """With `seq_length_schedule`, length of the sequences -> floating point operations per token; else empty."""
    kernels: Sequence[str] = ()
    """A line about the kernels of attention, and about each of another package that the configuration asks for."""
    planned: Planned | None = None
    """The planned time of a step; None if it is not known."""


@dataclass(frozen=True)
class Step:
    """One iteration: a batch of samples and one update."""

    iteration: int
    """Counted from 1."""
    loss: float
    """Mean loss over all tokens of the batch, in nats."""
    lr: float
    batch: int
    """Samples of the batch."""
    samples: int
    """Samples consumed so far, with this batch."""
    grad_norm: float | None
    """Gradient norm before clipping; None if DeepSpeed does not compute it."""
    seconds: float
    """Duration of this step."""
    elapsed: float
    """Seconds spent in steps so far, including those before the run was resumed."""
    left_out: int = 0
    """Samples that were left out before those of this batch."""
    skipped: bool = False
    """Whether the update was skipped: fp16 gradients overflowed, or the loss or a gradient was not finite."""
    length: int | None = None
    """Tokens of a sequence, into which the samples are cut; None if they stay whole."""
    memory: int | None = None
    """Peak memory of the main rank so far, in bytes: of tensors on a GPU, of the process on a CPU."""
    reports: Mapping[str, float] = field(default_factory=dict)
    """Other requested series, such as `gradient_norms/...`: name -> value."""


@dataclass(frozen=True)
class Evaluation:
    """The loss on held-out samples after `iteration` iterations."""

    iteration: int
    split: str
    """`validation`, `test`, or `validation/NAME` of a named set."""
    loss: float
    character_perplexity: float | None = None
    """With `char_level_ppl`, the perplexity per character."""
    reports: Mapping[str, float] = field(default_factory=dict)
    """What the loss measures besides its value, such as `reward_acc`: name -> mean."""

    @property
    def series(self) -> dict[str, float]:
        """The values by GPT-NeoX's names."""
        more = self.character_perplexity
        values = {"lm_loss": self.loss, **({} if more is None else {"lm_loss_char_lvl_ppl": more})}
        return {f"{self.split}/{name}": value for name, value in {**values, **self.reports}.items()}

    def tell(self, tracker: Tracker) -> None:
        tracker.on_eval(self)


@dataclass(frozen=True)
class TaskResults:
    """The results of `eval_tasks` after `iteration` iterations."""

    iteration: int
    values: Mapping[str, Mapping[str, float]]
    """Task -> metric -> value; the standard error of `acc` is `acc_stderr`."""

    @property
    def series(self) -> dict[str, float]:
        """The values by GPT-NeoX's names."""
        return {f"eval/{task}_{name}": value for task, values in self.values.items() for name, value in values.items()}

    def tell(self, tracker: Tracker) -> None:
        tracker.on_tasks(self)


@dataclass(frozen=True)
class Answer:
    """The model's continuation of a prompt."""

    prompt: str
    text: str
    finished: bool
    """Whether the model ended the text before `maximum_tokens`."""


@dataclass(frozen=True)
class Answers:
    """The continuations of all prompts after `iteration` iterations."""

    iteration: int
    answers: Sequence[Answer]

    def tell(self, tracker: Tracker) -> None:
        tracker.on_answers(self)


@dataclass(frozen=True)
class Comparison:
    """The mean time of `steps` steps until this iteration, beside the planned one."""

    iteration: int
    steps: int
    parts: Mapping[str, float]
    """What a step was spent on -> seconds: computation and messages, of which the plan is, and what it leaves out:
    data, saving, evaluation and the rest."""
    planned: Planned

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())


@dataclass(frozen=True)
class SpikeEvent:
    """A step whose loss or gradient norm stands out of the steps before it."""

    iteration: int
    quantity: str
    """`loss`, or the layer group with this gradient norm."""
    value: float
    median: float
    """Of the steps before; NaN if there are too few."""
    score: float
    """Deviations above the median."""
    where: str
    """The weight with the largest gradient and its rank, or where the first number was that is not finite."""
    samples: tuple[int, int]
    """The numbers of the first and the last sample of the step."""
    decision: str
    """The value of `on_spike`."""
    steps: int = 0
    """How many of the steps before the median is of; 0 if there are too few."""
    back_to: int | None = None
    """The iteration that the run has gone back to; None if it goes on."""

    def describe(self) -> str:
        """Return all that is known in one sentence."""
        what = "the loss" if self.quantity == "loss" else f"the gradient norm of {self.quantity}"
        above = f" is {self.score:.1f} deviations above the median {self.median:.4g} of the last {self.steps} steps"
        usual = above if isfinite(self.score) else ""
        first, last = self.samples
        where = f"; {self.where}" if self.where else ""
        return f"{what} {self.value:.4g} at iteration {self.iteration}{usual}{where}; samples {first:,} to {last:,}"


@dataclass(frozen=True)
class Outcome:
    """The end of a run: its last iteration, and the reason if it ended early."""

    iteration: int
    reason: str
    """Why the run ended early, such as the name of a signal; "" if all iterations are done."""
    checkpoint: Path | None
    """The last checkpoint."""


class Tracker:
    """Base of all trackers; override the methods of the events to observe."""

    def on_start(self, run: Run) -> None: ...

    def on_step(self, step: Step) -> None: ...

    def on_eval(self, evaluation: Evaluation) -> None: ...

    def on_tasks(self, results: TaskResults) -> None: ...

    def on_answers(self, answers: Answers) -> None: ...

    def on_comparison(self, compared: Comparison) -> None: ...

    def on_spike(self, spike: SpikeEvent) -> None: ...

    def on_save(self, iteration: int, folder: Path) -> None: ...

    def on_end(self, outcome: Outcome) -> None: ...
