"""Training steps and evaluation on DeepSpeed's two engines.

Both take the same micro batches and return the same loss on every rank: the mean over micro batches and data parallel
ranks, each the mean over its own trained tokens, or the mean over all trained tokens (`loss_average`).

What a step does, in this order:

1. `Trainer.take_step` sets the number of micro batches and the factor of the losses that layers add, and forgets what
   the step before has measured.
2. `update` runs forward and backward passes of the micro batches. With `loss_average: tokens`, all of them are read
   ahead and their labels counted over the replicas.
3. In the last backward pass, DeepSpeed or `deepspeed/buckets.py` sums the gradients over the replicas; before that, in
   each bucket, `non_finite.py` looks for infinity and NaN.
4. Before the optimizer, `before_step` of `deepspeed/optimizer_view.py` runs, the last installed first: a step that
   diverged is skipped (`skip_steps.py`), all ranks learn of NaN (`non_finite.py`), gradients that tensor parallel ranks
   have in part are summed (`partial_gradients.py`), and the reports of gradients are computed (`reports.py`).
5. DeepSpeed clips the gradients, and takes the optimizer's and the schedule's step.
6. The mean loss, what was found and what was measured are copied to the host in one piece (`process/reading.py`); then
   weights and optimizer state are reported. The loop reads the copy, on GPUs when it has started the next step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from neoxargs.train.batches.loader import reads_data
from neoxargs.train.deepspeed import interface, patches
from neoxargs.train.deepspeed.optimizer_view import loss_scale
from neoxargs.train.engine.non_finite import NonFinite, is_lowest_scale, keeps_overflowing
from neoxargs.train.engine.reports import StepReporter
from neoxargs.train.engine.spikes import Spike, Spikes, group_of
from neoxargs.train.losses.added_losses import AddedLosses
from neoxargs.train.losses.cross_entropy import IGNORED
from neoxargs.train.micro_batch import MicroBatch, to_pipeline
from neoxargs.train.process.mesh import Mesh
from neoxargs.train.process.reading import Reading


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
    spike: Spike | None = None
    """What stands out of the steps before, if anything does and `on_spike` asks for it."""
    told: tuple[int, ...] = ()
    """The largest on any rank of each number that the ranks told."""


class HeldOut(NamedTuple):
    """Result of an evaluation; equal on every rank."""

    loss: float
    reports: dict[str, float]
    """What the loss measures besides its value: name -> mean."""


class Trainer:
    """A model on one of DeepSpeed's engines, with its training steps and evaluations, in which all ranks take part.

    `batches`: None on the middle stages of a pipeline. watch: None if the model is only evaluated. by_token: the loss
    is the mean over all trained tokens of a batch (`loss_average: tokens`). batch_size, micro_batches: the samples of a
    whole batch, `train_batch_size`, and its micro batches on each data parallel rank; steps of a ramp have fewer.
    """

    def __init__(
        self,
        deepspeed: interface.Engine,
        reporter: StepReporter,
        mesh: Mesh,
        watch: NonFinite | None,
        added_losses: AddedLosses,
        by_token: bool = False,
    ) -> None:
        self.deepspeed, self.reporter, self.mesh, self.watch, self.by_token = deepspeed, reporter, mesh, watch, by_token
        self.added_losses = added_losses
        #: A line about each kernel of another package that the configuration asks for.
        self.kernels: list[str] = []
        #: The length of the step's sequences, into which samples are cut; None if these are whole.
        self.length: int | None = None
        self.spikes: Spikes | None = None
        #: The factors of the learning rate with which groups of weights are updated, if not all with the schedule's.
        self.own_rates: Mapping[str, float] = {}
        self.batch_size = int(deepspeed.train_batch_size())
        self.micro_batches = int(deepspeed.gradient_accumulation_steps())

    @property
    def reads_data(self) -> bool:
        """Whether this rank reads micro batches."""
        return reads_data(self.mesh)

    def learning_rate(self) -> float:
        # With muP, each group's rate was divided by its `width_mult`; reported is the schedule's.
        width: float = self.deepspeed.optimizer.param_groups[0].get("width_mult", 1.0)
        return float(self.deepspeed.get_lr()[0]) * width

    def losses(self) -> list[Tensor]:
        """Return the losses () of this step so far that this rank has: of each micro batch, or their sum."""
        raise NotImplementedError

    def update(self, batches: Iterator[MicroBatch] | None) -> Tensor:
        """Update the weights with the micro batches of the next step, and return the mean loss."""
        raise NotImplementedError

    def mean_loss(self, batches: Iterator[MicroBatch] | None, count: int) -> float:
        """Return the mean loss over `count` micro batches of each data parallel rank, without dropout."""
        raise NotImplementedError

    def monitor(self, loss: float, samples: int) -> None:
        """Tell DeepSpeed's monitor the loss after so many samples; the pipeline engine does so itself."""

    def train_step(
        self, batches: Iterator[MicroBatch] | None, samples: int | None = None, length: int | None = None
    ) -> Result:
        """Take one step, and wait for its result. Raises Problems as `take_step`."""
        return self.take_step(batches, samples=samples, length=length)()

    def take_step(
        self,
        batches: Iterator[MicroBatch] | None,
        told: Sequence[int] = (),
        samples: int | None = None,
        length: int | None = None,
    ) -> Callable[[], Result]:
        """Take one step, and return a function that waits for its result, which may be called after later steps.

        told: numbers from 0 to 2^24 of this rank, as many on every rank; the result has the largest of each.
        samples: the batch size of the step; None for `train_batch_size`. length: of the sequences into which the
        samples are cut; None if they are whole.
        Raises Problems if fp16 gradients overflow at the lowest loss scale. The function is collective.
        """
        engine, watch = self.deepspeed, self.watch
        assert watch is not None
        rates = {f"lr/{name}": self.learning_rate() * factor for name, factor in self.own_rates.items()}
        interface.set_batch_size(engine, samples or self.batch_size)
        self.use_length(length)
        self.reporter.begin()
        self.added_losses.begin_step(loss_scale(engine), engine.gradient_accumulation_steps())
        watch.begin_step(told)
        try:
            loss = self.update(batches)
        except Exception as error:
            if engine.fp16_enabled() and is_lowest_scale(error):
                where = watch.describe([], watch.largest)
                raise keeps_overflowing(engine.optimizer.loss_scale, where) from error
            raise
        samples_so_far = engine.global_samples
        norm, skipped = engine.get_global_grad_norm(), not engine.was_step_applied()
        fp16, overflowed = engine.fp16_enabled(), skipped and engine.fp16_enabled()
        fixed = fp16 and not engine.dynamic_loss_scale()
        on_device = [norm] if isinstance(norm, Tensor) and norm.device == engine.device else []
        spikes = self.spikes
        sums, scale, spike = (spikes.sums, spikes.scale, spikes.found) if spikes else (loss.new_empty(0), 1.0, None)
        reading = Reading([loss, watch.flags, *self.reporter.sums(), sums, *on_device], engine.device)
        norm_on_host = None if norm is None or on_device else float(norm)
        gradients, losses, reports = watch.largest, self.losses(), self.reporter.after_step(skipped)

        def read() -> Result:
            (mean,), (found, *largest), of_losses, of_measures, judged, *of_norm = reading.read()
            diverged = not overflowed and (found > 0 or not math.isfinite(mean))
            unusual = spike
            if spikes and not (spikes.decides or overflowed):
                unusual = spikes.judge(judged, scale)
            if unusual and not diverged:
                group = unusual.group
                where = watch.describe_largest(gradients, lambda name: group in ("", group_of(name)))
                unusual = unusual._replace(where=where)
            self.monitor(mean, samples_so_far)
            return Result(
                mean,
                grad_norm=of_norm[0][0] if of_norm else norm_on_host,
                skipped=skipped,
                overflowed=overflowed,
                scale_is_fixed=fixed,
                diverged=diverged,
                where=watch.describe(losses, gradients) if diverged else "",
                reports=rates if skipped else {**rates, **reports, **self.reporter.means(of_losses, of_measures)},
                spike=unusual,
                told=tuple(map(int, largest)),
            )

        return read

    def evaluate(self, batches: Iterator[MicroBatch] | None, count: int) -> HeldOut:
        """Return the means over `count` batches of `train_batch_size` samples."""
        interface.set_batch_size(self.deepspeed, self.batch_size)
        self.use_length(None)
        self.reporter.begin()
        loss = self.mean_loss(batches, count * self.micro_batches)
        return HeldOut(loss, self.reporter.after_evaluation())

    def use_length(self, length: int | None) -> None:
        """Cut the samples of the next micro batches into sequences of this length; None: leave them whole."""
        self.length = length

    def _on_device(self, batches: Iterator[MicroBatch]) -> Iterator[MicroBatch]:
        """Yield copies of the micro batches on the device. With `by_token`, those of a whole step are read ahead."""
        length = self.length
        copies = (batch.to(self.deepspeed.device) for batch in batches)
        copies = (batch.cut(length) for batch in copies) if length else copies
        return self._with_factors(copies) if self.by_token else copies

    def _with_factors(self, batches: Iterator[MicroBatch]) -> Iterator[MicroBatch]:
        """Give each micro batch the factor by which the mean over micro batches and replicas is that over tokens."""
        while step := list(islice(batches, self.deepspeed.gradient_accumulation_steps())):
            counts = torch.stack([(batch.labels != IGNORED).sum() for batch in step])
            total = counts.sum()
            if self.mesh.data.size > 1:
                dist.all_reduce(total, group=self.mesh.data.group)
            # DeepSpeed divides by micro batches and replicas. clamp: every label of a step may be masked.
            factors = counts * (len(step) * self.mesh.data.size) / total.clamp(min=1)
            for batch, factor in zip(step, factors, strict=True):
                yield replace(batch, factor=factor)


class Pipelined(Trainer):
    """Steps on the pipeline engine (1F1B schedule)."""

    deepspeed: interface.PipelineEngine

    def use_length(self, length: int | None) -> None:
        if length != self.length:
            self.deepspeed.reset_activation_shape()  # the buffers of what stages send
        super().use_length(length)

    def losses(self) -> list[Tensor]:
        # DeepSpeed adds up the losses on the last stage only; elsewhere this stays None.
        return [] if self.deepspeed.total_loss is None else [self.deepspeed.total_loss]

    def update(self, batches: Iterator[MicroBatch] | None) -> Tensor:
        return self.deepspeed.train_batch(self._inputs(batches))

    def mean_loss(self, batches: Iterator[MicroBatch] | None, count: int) -> float:
        return float(self.deepspeed.eval_batch(self._inputs(batches), num_micro_batches=count))

    def _inputs(self, batches: Iterator[MicroBatch] | None) -> Iterator[Any] | None:
        """Copy each micro batch when DeepSpeed asks for it; DeepSpeed's own copy would wait for the GPU's queue."""
        return None if batches is None else map(to_pipeline, self._on_device(batches))


class Plain(Trainer):
    """Steps on the engine without a pipeline."""

    deepspeed: interface.PlainEngine

    def losses(self) -> list[Tensor]:
        return self._losses

    def monitor(self, loss: float, samples: int) -> None:
        patches.monitor_loss(self.deepspeed, loss, samples)

    def update(self, batches: Iterator[MicroBatch] | None) -> Tensor:
        assert batches is not None
        self.deepspeed.train()
        self._losses: list[Tensor] = []
        inputs = self._on_device(batches)
        for _ in range(self.deepspeed.gradient_accumulation_steps()):
            loss = self._loss(next(inputs))
            self._losses.append(loss.detach())
            self.deepspeed.backward(loss)
            # Called for every micro batch; DeepSpeed updates the weights after the last one.
            self.deepspeed.step()
        return self._mean(self._losses)

    @torch.no_grad()
    def mean_loss(self, batches: Iterator[MicroBatch] | None, count: int) -> float:
        assert batches is not None
        self.deepspeed.eval()
        inputs = self._on_device(batches)
        return float(self._mean([self._loss(next(inputs)) for _ in range(count)]))

    def _loss(self, batch: MicroBatch) -> Tensor:
        loss: Tensor = self.deepspeed(**vars(batch))
        return loss

    def _mean(self, losses: list[Tensor]) -> Tensor:
        mean = torch.stack(losses).mean()
        if self.mesh.data.size > 1:
            dist.all_reduce(mean, group=self.mesh.data.group)
            mean /= self.mesh.data.size
        return mean
