"""The training loop: steps, evaluations, checkpoints and the conditions to stop. It is independent of parallelism."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from neoxargs.base.problems import Problems
from neoxargs.facts.batch_sizes import BatchSizes
from neoxargs.facts.position import Position
from neoxargs.facts.sequence_lengths import SequenceLengths
from neoxargs.facts.timeline import save_iterations
from neoxargs.processes.watch import Progress
from neoxargs.registry.training import Training
from neoxargs.train.batches.loader import Loader
from neoxargs.train.engine.divergence import Divergence, nothing_to_roll_back_to, too_many_spikes
from neoxargs.train.engine.spikes import ACTING, Spike
from neoxargs.train.engine.steps import Result, Trainer
from neoxargs.train.evaluation.in_training import Evaluations, Results
from neoxargs.train.process.setup import peak_memory
from neoxargs.train.process.stop_request import StopRequest
from neoxargs.train.saves import Saves
from neoxargs.train.track.time_spent import EVALUATION, SAVING, Spent
from neoxargs.train.track.tracker import Comparison, Evaluation, Outcome, SpikeEvent, Step
from neoxargs.train.track.trackers import Trackers

#: The reason to stop when every dataset that has a share has been read as often as it may.
DATA_ENDED = "train_data_max_epochs"


class _Unread(NamedTuple):
    """A step that has been started."""

    position: Position
    """After the step."""
    batch: int
    """Its samples."""
    length: int | None
    """Of its sequences; None if they are whole samples."""
    lr: float
    began: float
    result: Callable[[], Result]


@dataclass
class Loop:
    """A training run from `position` until `train_iters` iterations are done or a condition stops it."""

    training: Training
    sizes: BatchSizes
    trainer: Trainer
    data: Loader
    saves: Saves
    evaluations: Evaluations
    trackers: Trackers
    stop: StopRequest
    progress: Progress
    """For the supervisor, which ends a rank whose work takes longer than what it has announced."""
    position: Position
    elapsed: float = 0.0
    """Seconds spent in steps, also before the run was resumed."""
    read_every: int = 1
    """The host waits for the result of a step whose number is a multiple of it, or after which something follows. All
    others are read when the next step has been started, so that a GPU does not wait for the host. Equal on all ranks.
    """
    spent: Spent = field(default_factory=Spent)
    lengths: SequenceLengths | None = None
    """Of the sequences into which samples are cut; None if they stay whole."""

    def __post_init__(self) -> None:
        self.divergence = Divergence(self.training)
        self.unread: list[_Unread] = []
        self.reason, self.read_at = "", 0.0

    def run(self) -> Outcome:
        """Train, and return the last iteration and the reason to stop.

        Raises Problems if training diverges, or if a checkpoint or what a tracker writes cannot be saved.
        """
        last = self.training.train_iters
        self._read_data()
        save_after = save_iterations(self.saves.options, last) if self.saves.options.save else []
        if self.position.iteration == 0 and self._steps_left():
            self._report(self.evaluations.before_training())
        # Until the last checkpoint is complete: a launcher may forward a signal after the ranks have received it.
        with self.stop, self.spent.measuring():
            while self._steps_left() and not self.reason:
                if self._data_ends():
                    self._read()
                    # A spike in what was read may have taken the run back.
                    self.reason = DATA_ENDED if self._data_ends() else ""
                    continue
                iteration = self.position.iteration + 1
                self.progress.step(iteration)
                self._step()
                exits = self._exit_reason()
                follows = iteration in save_after or exits or iteration == last or self.evaluations.due(iteration)
                self._read(unread=0 if follows or iteration % self.read_every == 0 else 1)
                if self.position.iteration < iteration:  # rolled back
                    continue
                # The evaluation of the last iteration and every save before an exit happen after the loop.
                if iteration < last:
                    self._report(self.evaluations.after_step(iteration))
                self.reason = self.reason or exits
                if iteration in save_after and not self.reason:
                    self._save()
            self._read()
            self._compare(self.spent.compared(self.position.iteration))
            if not self.reason:
                self._report(self.evaluations.after_training(self.position.iteration))
            self._save(last=True)
            self.saves.end()
        self.progress.done()
        outcome = Outcome(self.position.iteration, self.reason, self.saves.saver.last)
        # The console, which is first, ends last: it prints where the others wrote.
        self.trackers.tell(lambda tracker: tracker.on_end(outcome), last_first=True)
        return outcome

    def _steps_left(self) -> bool:
        return self.position.iteration < self.training.train_iters and self.training.do_train is not False

    def _exit_reason(self) -> str:
        every = self.training.exit_interval
        return "exit_interval" if every and self.position.iteration % every == 0 and self._steps_left() else ""

    def _read_data(self) -> None:
        """Read the training data from the position on, and have as much of it as the steps that are left need."""
        self.data = self.data.reaching(self.position.last_sample(self.sizes, self.training.train_iters))
        self.batches = self.spent.waiting(self.data.train(self.position.next_sample))

    def _data_ends(self) -> bool:
        return self.data.ends_before(self.position.next_sample + self.sizes.after(self.position.samples))

    def _step(self) -> None:
        self.data.comparison.check()
        # The schedule advances at the end of a step, so this is the learning rate of this step.
        lr, began, iteration = self.trainer.learning_rate(), time.perf_counter(), self.position.iteration + 1
        batch = self.sizes.after(self.position.samples)
        length = self.lengths.shorter(self.position.samples) if self.lengths else None
        told = self.stop.tell(iteration, busy=self.saves.saver.writing)
        result = self.trainer.take_step(self.batches, told, batch, length)
        self.position = Position(iteration, self.position.samples + batch, self.position.left_out)
        self.unread.append(_Unread(self.position, batch, length, lr, began, result))

    def _read(self, unread: int = 0) -> None:
        """Read the results of all steps but the last `unread` ones."""
        while len(self.unread) > unread:
            step = self.unread.pop(0)
            self._read_step(step, step.result())

    def _read_step(self, taken: _Unread, result: Result) -> None:
        # A step that was started while the one before was computed has taken the time since that one's end.
        began, self.read_at = max(taken.began, self.read_at), time.perf_counter()
        seconds = self.read_at - began
        self.elapsed += seconds
        self.progress.took(seconds)
        if self.divergence.ends_run(result):
            unsaved = self.saves.problems_of_finishing()
            raise Problems([self.divergence.problem(result, taken.position.iteration, self.saves.saver.last), *unsaved])
        step = Step(
            iteration=taken.position.iteration,
            loss=result.loss,
            lr=taken.lr,
            batch=taken.batch,
            length=taken.length,
            samples=taken.position.samples,
            grad_norm=result.grad_norm,
            seconds=seconds,
            elapsed=self.elapsed,
            skipped=result.skipped,
            left_out=taken.position.left_out,
            memory=peak_memory(),
            reports=result.reports,
        )
        self.trackers.tell(lambda tracker: tracker.on_step(step))
        if result.spike:
            self._react(result, result.spike, taken)
        self._compare(self.spent.after(step))
        reason, busy = self.stop.answer(result.told)
        self.reason = self.reason or reason
        # `busy` is the same on every rank, so all of them finish here or none; and none has to wait for a file.
        if self.saves.saver.pending and not busy:
            with self.spent.on(SAVING):
                self.saves.finish()

    def _react(self, result: Result, spike: Spike, taken: _Unread) -> None:
        """Report a spike, and do what `on_spike` says of the steps that follow. Raises Problems."""
        options, first = self.training, taken.position.next_sample - taken.batch
        where = result.where or (spike.where and f"the largest gradient is that of {spike.where}")
        event = SpikeEvent(
            taken.position.iteration, spike.quantity, spike.value, spike.median, spike.score, where,
            (first, taken.position.next_sample - 1), options.on_spike, spike.steps,
        )  # fmt: skip
        goes_back = options.on_spike == "rollback"
        if not goes_back:
            self.trackers.tell(lambda tracker: tracker.on_spike(event))
        if options.on_spike not in ACTING:
            return
        assert self.trainer.spikes
        self.trainer.spikes.count += 1
        if self.trainer.spikes.count > options.max_spikes:
            if goes_back:
                self.trackers.tell(lambda tracker: tracker.on_spike(event))
            unsaved = self.saves.problems_of_finishing()
            raise Problems([too_many_spikes(options, event.describe(), self.saves.saver.last), *unsaved])
        position, left_out = self.position, options.spike_skip_samples
        if goes_back:
            position = self._roll_back(event)
            left_out += taken.position.next_sample - position.next_sample
        if left_out:
            # Without a rollback, every result is read at once, so this is the position of the run.
            self.position = Position(position.iteration, position.samples, position.left_out + left_out)
            self._read_data()
        if goes_back:
            # So that a run that is resumed from here leaves out the same samples.
            self._save()
            self.trackers.tell(lambda tracker: tracker.on_spike(replace(event, back_to=position.iteration)))

    def _roll_back(self, spike: SpikeEvent) -> Position:
        """Restore an earlier checkpoint, forget the steps since, and return its position. Raises Problems."""
        found = self.saves.roll_back(self.training.spike_rollback_checkpoints)
        if found is None:
            self.trackers.tell(lambda tracker: tracker.on_spike(spike))
            raise Problems(nothing_to_roll_back_to(self.training, spike.describe(), self.saves.options.save))
        self.unread.clear()
        return found

    def _compare(self, compared: Comparison | None) -> None:
        if compared:
            self.trackers.tell(lambda tracker: tracker.on_comparison(compared))

    def _report(self, results: Results) -> None:
        with self.spent.on(EVALUATION):
            for result in results:
                self.trackers.tell(result.tell)
                if isinstance(result, Evaluation) and result.split == "validation":
                    self.saves.validated = result

    def _save(self, last: bool = False) -> None:
        if self.saves.needed(self.position):
            self.data.comparison.check()
            with self.spent.on(SAVING):
                self.saves.save(self.position, last)
