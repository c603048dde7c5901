"""Where the time of a run goes: measured on the main rank by the host's clock, without waiting for a GPU.

These are the steps, and in them the time until a batch is there; saving, evaluation, and the rest between the steps.
What remains of a step is computation and messages, which are measured apart on CPUs only: on GPUs, both are queued, and
only a profiler can tell them apart.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from neoxargs.files.metrics import LEAST, WARM_UP
from neoxargs.targets.planned import Planned
from neoxargs.train.micro_batch import MicroBatch
from neoxargs.train.process import messages
from neoxargs.train.track.tracker import Comparison, Step

DATA, SAVING, EVALUATION, OTHER = "waiting for data", "saving", "evaluation", "between steps"
COMPUTE, MESSAGES, BOTH = "compute", "messages", "compute and messages"
#: The parts of a plan that a rank spends in messages: a stage of a pipeline waits for those of others.
IN_MESSAGES = ("messages", "bubble")
#: Steps after which the run is first compared, besides those of WARM_UP.
STEPS = 20


class Spent:
    """Adds up where the time goes, and compares it with the plan.

    tokens_per_sample: of the run. is_idle: whether the device has nothing left to compute; None if computation is not
    queued. A batch that arrives while it is still computing has delayed nothing. with_messages: whether messages are
    measured.
    """

    def __init__(
        self,
        planned: Planned | None = None,
        tokens_per_sample: int = 0,
        is_idle: Callable[[], bool] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        with_messages: bool = False,
    ) -> None:
        self.planned, self.tokens_per_sample, self.is_idle, self.clock = planned, tokens_per_sample, is_idle, clock
        self.with_messages, self.read, self.between = with_messages, 0, False
        self._begin()

    def _begin(self) -> None:
        self.began, self.steps, self.in_steps, self.parts = self.clock(), 0, 0.0, Counter[str]()

    @contextmanager
    def on(self, part: str) -> Iterator[None]:
        """Within this, time is spent on a part of a run outside of its steps."""
        began, self.between = self.clock(), True
        yield
        self.parts[part] += self.clock() - began  # type: ignore[assignment]
        self.between = False

    def measuring(self) -> AbstractContextManager[None]:
        """Within this, messages are measured if they can be."""
        return messages.timed(self._in_message, self.clock) if self.planned and self.with_messages else nullcontext()

    def _in_message(self, seconds: float) -> None:
        if not self.between:
            self.parts[MESSAGES] += seconds  # type: ignore[assignment]

    def waiting(self, batches: Iterator[MicroBatch] | None) -> Iterator[MicroBatch] | None:
        """Return the same batches, with the time until each is there counted."""
        return self._waiting(batches) if batches and self.planned else batches

    def _waiting(self, batches: Iterator[MicroBatch]) -> Iterator[MicroBatch]:
        while True:
            began = self.clock()
            batch = next(batches)
            if self.is_idle is None or self.is_idle():
                self.parts[DATA] += self.clock() - began  # type: ignore[assignment]
            yield batch

    def after(self, step: Step) -> Comparison | None:
        """Count a step; return the comparison after the first STEPS that count.

        Steps at the start do not count, nor those of a ramp, which have other batches than the planned one.
        """
        if not self.planned:
            return None
        self.read += 1
        is_planned = step.length is None and step.batch * self.tokens_per_sample == self.planned.tokens
        if self.read <= WARM_UP or not is_planned:
            self._begin()
            return None
        self.steps += 1
        self.in_steps += step.seconds
        return self.compared(step.iteration) if self.steps == STEPS else None

    def compared(self, iteration: int) -> Comparison | None:
        """Return the comparison of all steps that count so far; None if they are too few."""
        if not self.planned or self.steps < LEAST:
            return None
        total, parts = self.clock() - self.began, self.parts
        computed = max(0.0, self.in_steps - parts[DATA] - parts[MESSAGES])
        is_alone = not self.planned.parts.keys() & IN_MESSAGES
        together = {COMPUTE if is_alone else BOTH: computed}
        spent = {
            **({COMPUTE: computed, MESSAGES: parts[MESSAGES]} if self.with_messages else together),
            **{name: parts[name] for name in (DATA, SAVING, EVALUATION)},
            OTHER: max(0.0, total - self.in_steps - parts[SAVING] - parts[EVALUATION]),
        }
        of_step = {name: seconds / self.steps for name, seconds in spent.items()}
        return Comparison(iteration, self.steps, of_step, self.planned)
