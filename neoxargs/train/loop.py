"""The training loop: steps, evaluations, checkpoints and the conditions to stop. It is independent of parallelism."""

from __future__ import annotations

import errno
import math
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed

from neoxargs.base.problems import Problem, Problems
from neoxargs.processes.watch import Progress
from neoxargs.registry.checkpoint import Checkpoint
from neoxargs.registry.training import Training
from neoxargs.train.checkpoint.saving import Position, Saved
from neoxargs.train.process import memory
from neoxargs.train.process.collectives import all_reduce
from neoxargs.train.process.report import warn
from neoxargs.train.run_folders import RunFolders
from neoxargs.train.track.tracker import Evaluation, Outcome, Split, Step, Tracker

if TYPE_CHECKING:
    from neoxargs.train.engine.steps import HeldOut, Result
    from neoxargs.train.evaluation.characters import CharacterCounter
    from neoxargs.train.evaluation.questions import Questions

#: The id of the problem that a checkpoint cannot be written.
NOT_SAVED = "checkpoint-not-saved"
#: Errors of a disk that is full, read-only or broken, or of a folder that has vanished.
DISK_ERRORS = (
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE, errno.ENOENT,
    errno.ENOTDIR, errno.EEXIST,
)  # fmt: skip
#: Endless iterator of micro batches in order; None if this pipeline stage reads no data.
Batches = Iterator[Any] | None


class Engine(Protocol):
    """A model that can be trained and evaluated; see engine/steps.py for the two implementations."""

    def train_step(self, batches: Batches) -> Result: ...

    def evaluate(self, batches: Batches, count: int) -> HeldOut: ...

    def learning_rate(self) -> float: ...


class Data(Protocol):
    """Endless micro batches. The next training sample depends only on the number of samples consumed."""

    def train(self, consumed: int) -> Batches: ...

    def held_out(self, split: Split, evaluation: int = 0) -> Batches: ...

    def has(self, split: Split) -> bool: ...


class Saver(Protocol):
    """Saves checkpoints, blocking or in the background; see checkpoint/saving.py.

    last: folder of the latest one, saved or loaded. pending: not None while one is written in the background.
    """

    last: Path | None
    pending: Any

    @property
    def writing(self) -> bool: ...

    def save(self, position: Position) -> Saved | None: ...

    def finish(self) -> Saved | None: ...

    def close(self) -> None: ...


@dataclass
class Loop:
    """A training run from `position` until `train_iters` iterations are done or a condition stops it."""

    training: Training
    checkpoint: Checkpoint
    batch_size: int
    engine: Engine
    data: Data
    saver: Saver
    position: Position
    trackers: list[Tracker]
    device: torch.device
    elapsed: float = 0.0
    saved: Position | None = None
    stop_file: Path | None = None
    """With `adlr_autoresume`: creating this file makes the run save a checkpoint and exit."""
    progress: Progress = field(default_factory=Progress)
    run_dir: Path = Path()
    folders: RunFolders = field(default_factory=lambda: RunFolders({}))
    """The folders that this rank recreates if they disappear."""
    failed_in_a_row: int = 0
    """Number of steps in a row that diverged and were skipped, with `on_divergence: skip`."""
    unwritten: set[str] = field(default_factory=set)
    """Warnings that were already printed about trackers that could not write; each is printed only once."""
    characters: CharacterCounter | None = None
    """With `char_level_ppl`, counts the characters of the evaluated text."""
    questions: Questions | None = None
    """Tasks and prompts to evaluate during training; None if there are none."""
    check_data: Callable[[], None] = lambda: None
    """Raises Problems if the comparison of the token files with their checksums has found damage."""

    def run(self) -> Outcome:
        """Train, and return the last iteration and the reason to stop. Raises Problems if the loss is not finite."""
        saves = save_iterations(self.checkpoint, self.training.train_iters)
        batches = self.data.train(self.position.samples)
        reason = ""
        if not self.position.iteration and self._has_iterations_left():
            # What the untrained model answers, to compare with.
            self._ask(everything=True)
        # Until the last checkpoint is complete: a launcher may forward a signal after the ranks have received it.
        with StopRequest(self.device, self.stop_file) as request:
            while self._has_iterations_left() and not reason:
                # For the supervisor, which ends a rank whose work takes longer than what it has announced.
                self.progress.step(self.position.iteration + 1)
                request.ask(check_file=self._checks_stop_file(), busy=self.saver.writing)
                self._step(batches)
                iteration = self.position.iteration
                # The evaluation of the last iteration and every save before an exit happen after the loop.
                if self._due(self.training.eval_interval) and iteration < self.training.train_iters:
                    self._evaluate("validation", self._intervals() - 1)
                if iteration < self.training.train_iters:
                    self._ask()
                reason = request.answer() or self._exit_reason()
                # `busy` is the same on every rank, so all of them finish here or none; and none has to wait for a file.
                if self.saver.pending and not request.busy:
                    self._complete(self.saver.finish)
                if iteration in saves and not reason:
                    self._save()
            if not reason:
                # GPT-NeoX evaluates the last iteration twice if its number is a multiple of the interval.
                self._evaluate("validation", self._intervals())
                self._evaluate("test")
                self._ask(everything=True)
            self._save(last=True)
            self.progress.long("completing the last checkpoint")
            self._complete(self.saver.finish, last=True)
            self.saver.close()
        self.progress.done()
        outcome = Outcome(self.position.iteration, reason, self.saver.last)
        # The console, which is first, ends last: it prints where the others wrote.
        self._notify(lambda tracker: tracker.on_end(outcome), reversed(self.trackers))
        return outcome

    def _has_iterations_left(self) -> bool:
        return self.position.iteration < self.training.train_iters and self.training.do_train is not False

    def _checks_stop_file(self) -> bool:
        return (self.position.iteration + 1) % self.training.adlr_autoresume_interval == 0

    def _step(self, batches: Batches) -> None:
        self.check_data()
        # The schedule advances at the end of a step, so this is the learning rate of this step.
        lr, began = self.engine.learning_rate(), time.perf_counter()
        result = self.engine.train_step(batches)
        seconds = time.perf_counter() - began
        self.elapsed += seconds
        self.progress.took(seconds)
        self.position = Position(self.position.iteration + 1, self.position.samples + self.batch_size)
        self._check_divergence(result)
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
        self._notify(lambda tracker: tracker.on_step(step))

    def _check_divergence(self, result: Result) -> None:
        """Raise Problems if the run has diverged, as `on_divergence` says."""
        options, stops, finite = self.training, self.training.on_divergence == "stop", math.isfinite(result.loss)
        # fp16 skips steps with an overflow and lowers a dynamic loss scale; their loss may be infinite.
        if stops and (result.diverged or not (finite or result.overflowed)):
            self._complete(self.saver.finish)
            raise Problems(_diverged(result, self.position.iteration, self.saver.last))
        recovers = result.overflowed and not result.scale_is_fixed and (finite or stops)
        failed = result.diverged or not finite or result.skipped
        self.failed_in_a_row = self.failed_in_a_row + 1 if failed and not recovers else 0
        if self.failed_in_a_row >= options.max_skipped_steps:
            self._complete(self.saver.finish)
            problem = _keeps_failing(options.max_skipped_steps, result, self.position.iteration, self.saver.last)
            raise Problems(problem)

    def _intervals(self) -> int:
        """Number of complete intervals between evaluations so far."""
        return self.position.iteration // self.training.eval_interval if self.training.eval_interval else 0

    def _evaluate(self, split: Split, number: int = 0) -> None:
        """Evaluate and report. number: how many evaluations on this split came before in an uninterrupted run."""
        wanted = self.training.do_valid if split == "validation" else self.training.do_test
        if wanted is False or not self.training.eval_iters or not self.data.has(split):
            return
        self.progress.long(f"the evaluation after step {self.position.iteration}")
        batches, characters = self.data.held_out(split, number), self.characters
        if characters:
            batches = characters.counted(batches)
        loss, reports = self.engine.evaluate(batches, self.training.eval_iters)
        per_character = characters.perplexity(loss) if characters else None
        evaluation = Evaluation(self.position.iteration, split, loss, per_character, reports)
        self._notify(lambda tracker: tracker.on_eval(evaluation))

    def _ask(self, everything: bool = False) -> None:
        """Run the tasks and continue the prompts that are due, or all of them, and report."""
        iteration = self.position.iteration
        if self.questions and (everything or self.questions.due(iteration)):
            self.progress.long(f"the tasks and prompts after step {iteration}")
            for found in self.questions.ask(iteration, everything):
                self._notify(found.tell)

    def _save(self, last: bool = False) -> None:
        if not self.checkpoint.save or self.position == self.saved:
            return
        self.check_data()
        self.progress.long(f"saving the checkpoint of step {self.position.iteration}")
        self._restore_folders()
        self._complete(self.saver.finish)
        if self._complete(lambda: self.saver.save(self.position), last):
            self.saved = self.position

    def _complete(self, save: Callable[[], Saved | None], last: bool = False) -> bool:
        """Save a checkpoint, or finish one that is written in the background, and report what is complete.

        last: whether the run ends with it. Returns False if it cannot be written and training goes on without it.
        """
        try:
            saved = save()
        except Problems as problems:
            if last or not self._continues_unsaved(problems):
                raise
            return False
        if saved:
            self._notify(lambda tracker: tracker.on_save(saved.position.iteration, saved.folder))
        return True

    def _continues_unsaved(self, problems: Problems) -> bool:
        """Warn of a checkpoint that cannot be written, and return whether training goes on without it."""
        if self.checkpoint.on_save_error == "stop" or {problem.id for problem in problems.problems} != {NOT_SAVED}:
            return False
        if self.trackers:  # on one rank only
            warn(problems.problems)
        return True

    def _due(self, interval: int | None) -> bool:
        return bool(interval) and self.position.iteration % (interval or 1) == 0

    def _exit_reason(self) -> str:
        return "exit_interval" if self._due(self.training.exit_interval) else ""

    def _restore_folders(self) -> None:
        """Create folders that have vanished again, and warn of it."""
        with self._reporting():
            if warnings := self.folders.restore():
                warn(warnings)

    def _notify(self, event: Callable[[Tracker], None], trackers: Iterable[Tracker] | None = None) -> None:
        """Tell the trackers of an event. trackers: some other order of them."""
        self._restore_folders()
        for tracker in self.trackers if trackers is None else trackers:
            with self._reporting():
                event(tracker)

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Within this, handle a file that cannot be written as `on_save_error` says: a problem, or one warning."""
        try:
            yield
        except OSError as error:
            if error.errno not in DISK_ERRORS:
                raise
            problems = Problems(_unwritten(self.run_dir, error))
            if self.checkpoint.on_save_error == "stop":
                raise problems from error
            if str(problems) not in self.unwritten:
                self.unwritten.add(str(problems))
                warn(problems.problems)


class StopRequest:
    """Request to stop by a signal or the stop file: finish the step, save, exit with code 0, as Megatron does.

    The signals are SIGTERM, Ctrl-C, and SIGHUP of a terminal that closes, which `nohup` lets a run ignore.

    Signals reach the ranks at different steps, so every step begins an all-reduce of the received signal. It overlaps
    with the computation of the step. SIGTERM may arrive more than once, because a launcher forwards a signal that its
    process group has already received. A second Ctrl-C ends the process immediately.

    busy: after `answer`, whether any rank wrote a checkpoint in the background when the step began.
    """

    #: Stands for the stop file in the all-reduce; larger than any signal's number.
    BY_FILE = 1000

    def __init__(self, device: torch.device, file: Path | None = None) -> None:
        self.received, self.file = "", file
        self.flag, self.busy = torch.zeros(2, dtype=torch.int32, device=device), False

    def __enter__(self) -> StopRequest:
        handled = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            handled.append(signal.SIGHUP)
        self.before = {number: signal.signal(number, self._receive) for number in handled}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def ask(self, check_file: bool, busy: bool = False) -> None:
        """Begin the all-reduce of this rank's request.

        check_file: whether to look for the stop file too. busy: whether this rank writes a checkpoint.
        """
        number = signal.Signals[self.received].value if self.received else 0
        # Filled, not assigned: a number that is assigned to an element waits for the device.
        self.flag[0].fill_(self.BY_FILE if check_file and self.file and self.file.exists() else number)
        self.flag[1].fill_(int(busy))
        self.work = all_reduce(self.flag, torch.distributed.ReduceOp.MAX, async_op=True)

    def answer(self) -> str:
        """Return the reason to stop that any rank had before this step, or "" if there is none."""
        self.work.wait()
        number, busy = self.flag.tolist()
        self.busy = bool(busy)
        if number == self.BY_FILE and self.file:
            self.file.unlink(missing_ok=True)  # or the run that continues would stop immediately
            return f"found the stop file {self.file}"
        return signal.Signals(number).name if number else ""

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number).name
        if number == signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)


def save_iterations(options: Checkpoint, train_iters: int) -> frozenset[int]:
    """Return the iterations after which a checkpoint is saved, in addition to the last one.

    With a linear scale, every `checkpoint_factor` iterations; with a log scale, iteration 1 and then each previous one
    times `checkpoint_factor`, rounded up. `extra_save_iters` are added.
    """
    factor, chosen = options.checkpoint_factor, set(options.extra_save_iters or ())
    if factor and options.checkpoint_scale == "linear":
        chosen |= set(range(int(factor), train_iters, int(factor)))
    elif factor and factor > 1:
        iteration = 1
        while iteration < train_iters:
            chosen.add(iteration)
            iteration = math.ceil(iteration * factor)
    return frozenset(chosen)


def _keeps_failing(steps: int, result: Result, iteration: int, last: Path | None) -> Problem:
    latest = f"the latest checkpoint is {last}" if last else "no checkpoint has been saved"
    what = f"max_skipped_steps ({steps}) was reached at iteration {iteration}, because losses or gradients were "
    what += f"infinite or NaN{_where(result)}; training stopped without saving; {latest}"
    hint = "set iteration to continue from an earlier checkpoint, and set a lower lr or gradient_clipping"
    about = ["max_skipped_steps", "on_divergence", "lr", "gradient_clipping"]
    if result.scale_is_fixed:
        hint += ", or remove fp16.loss_scale, so that the loss scale is lowered after an overflow"
        about.append("fp16.loss_scale")
    return Problem(what, hint=hint, id="steps-keep-diverging", about=tuple(about))


def _unwritten(run_dir: Path, error: OSError) -> Problem:
    file, reason = error.filename or "a metrics or report file", (error.strerror or str(error)).lower()
    what = f"run_dir ({run_dir}): {file} cannot be written: {reason}"
    hint = "free up space on this disk, or set run_dir to a folder that this user can write to"
    return Problem(what, hint=hint, id="run-folder-not-written", about=("run_dir", "on_save_error"))


def _diverged(result: Result, iteration: int, last: Path | None) -> Problem:
    latest = f"the latest checkpoint is {last}" if last else "no checkpoint has been saved"
    hint = "to prevent divergence, set a lower lr, a longer warmup, or gradient_clipping"
    finite = math.isfinite(result.loss)
    found = "a gradient is infinite or NaN" if finite else f"the loss is {result.loss}"
    what = f"{found} at iteration {iteration}{_where(result)}; training stopped without saving; {latest}"
    id = "gradient-not-finite" if finite else "loss-not-finite"
    return Problem(what, hint=hint, id=id, about=("lr", "warmup", "gradient_clipping"))


def _where(result: Result) -> str:
    return f", {result.where}" if result.where else ""
