"""The training loop: steps, evaluations, checkpoints and the conditions to stop. It is independent of parallelism."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from neoxargs.base.problems import Problems
from neoxargs.facts.timeline import save_iterations
from neoxargs.processes.watch import Progress
from neoxargs.registry.training import Training
from neoxargs.train.batches.loader import Loader
from neoxargs.train.checkpoint.saving import Position
from neoxargs.train.engine.divergence import Divergence
from neoxargs.train.engine.steps import Trainer
from neoxargs.train.evaluation.in_training import Evaluations, Results
from neoxargs.train.micro_batch import MicroBatch
from neoxargs.train.process import memory
from neoxargs.train.process.stop_request import StopRequest
from neoxargs.train.saves import Saves
from neoxargs.train.track.tracker import Outcome, Step
from neoxargs.train.track.trackers import Trackers


@dataclass
class Loop:
    """A training run from `position` until `train_iters` iterations are done or a condition stops it."""

    training: Training
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

    def __post_init__(self) -> None:
        self.divergence = Divergence(self.training)

    def run(self) -> Outcome:
        """Train, and return the last iteration and the reason to stop.

        Raises Problems if training diverges, or if a checkpoint or what a tracker writes cannot be saved.
        """
        last, reason = self.training.train_iters, ""
        batches = self.data.train(self.position.samples)
        save_after = save_iterations(self.saves.options, last)
        if self.position.iteration == 0 and self._steps_left():
            self._report(self.evaluations.before_training())
        # Until the last checkpoint is complete: a launcher may forward a signal after the ranks have received it.
        with self.stop:
            while self._steps_left() and not reason:
                iteration = self.position.iteration + 1
                self.progress.step(iteration)
                self.stop.ask(iteration, busy=self.saves.writing)
                self._step(batches)
                # The evaluation of the last iteration and every save before an exit happen after the loop.
                if iteration < last:
                    self._report(self.evaluations.after_step(iteration))
                reason = self.stop.answer() or self._exit_reason()
                # `busy` is the same on every rank, so all of them finish here or none; and none has to wait for a file.
                if self.saves.pending and not self.stop.busy:
                    self.saves.finish()
                if iteration in save_after and not reason:
                    self._save()
            if not reason:
                self._report(self.evaluations.after_training(self.position.iteration))
            self._save(last=True)
            self.saves.end()
        self.progress.done()
        outcome = Outcome(self.position.iteration, reason, self.saves.last)
        # The console, which is first, ends last: it prints where the others wrote.
        self.trackers.tell(lambda tracker: tracker.on_end(outcome), last_first=True)
        return outcome

    def _steps_left(self) -> bool:
        return self.position.iteration < self.training.train_iters and self.training.do_train is not False

    def _exit_reason(self) -> str:
        every = self.training.exit_interval
        return "exit_interval" if every and self.position.iteration % every == 0 and self._steps_left() else ""

    def _step(self, batches: Iterator[MicroBatch] | None) -> None:
        self.data.comparison.check()
        # The schedule advances at the end of a step, so this is the learning rate of this step.
        lr, began = self.trainer.learning_rate(), time.perf_counter()
        result = self.trainer.train_step(batches)
        seconds = time.perf_counter() - began
        self.elapsed += seconds
        self.progress.took(seconds)
        self.position = Position(self.position.iteration + 1, self.position.samples + self.trainer.samples_per_step)
        if self.divergence.ends_run(result):
            unsaved = self.saves.problems_of_finishing()
            raise Problems([self.divergence.problem(result, self.position.iteration, self.saves.last), *unsaved])
        step = Step(
            iteration=self.position.iteration,
            loss=result.loss,
            lr=lr,
            grad_norm=result.grad_norm,
            seconds=seconds,
            elapsed=self.elapsed,
            skipped=result.skipped,
            memory=memory.peak(),
            reports=result.reports,
        )
        self.trackers.tell(lambda tracker: tracker.on_step(step))

    def _report(self, results: Results) -> None:
        for result in results:
            self.trackers.tell(result.tell)

    def _save(self, last: bool = False) -> None:
        if self.saves.needed(self.position):
            self.data.comparison.check()
            self.saves.save(self.position, last)
