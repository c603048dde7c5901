"""The training loop with an engine that only counts, and a recorder of what happens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from neoxargs.facts.batch_sizes import BatchSizes
from neoxargs.facts.position import Position
from neoxargs.processes.watch import Progress
from neoxargs.registry.checkpoint import Checkpoint
from neoxargs.registry.training import Training
from neoxargs.train.batches.comparison import Comparison
from neoxargs.train.checkpoint.saving import Saved
from neoxargs.train.engine.steps import HeldOut, Result
from neoxargs.train.evaluation.in_training import Evaluations
from neoxargs.train.loop import Loop
from neoxargs.train.process.stop_request import StopRequest
from neoxargs.train.saves import Saves
from neoxargs.train.track.tracker import Answers, Evaluation, Step, TaskResults, Tracker
from neoxargs.train.track.trackers import Trackers


class Recorder(Tracker):
    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def on_step(self, step: Step) -> None:
        self.events.append(("step", step.iteration))

    def on_eval(self, evaluation: Evaluation) -> None:
        self.events.append((evaluation.split, evaluation.iteration))

    def on_tasks(self, results: TaskResults) -> None:
        self.events.append(("tasks", results.iteration))

    def on_answers(self, answers: Answers) -> None:
        self.events.append(("answers", answers.iteration))

    def on_save(self, iteration: int, folder: Path) -> None:
        self.events.append(("save", iteration))


class AtStep(Tracker):
    """Does something at a step, or at every one."""

    def __init__(self, act: Callable[[], object], iteration: int | None = None) -> None:
        self.act, self.iteration = act, iteration

    def on_step(self, step: Step) -> None:
        if self.iteration in (None, step.iteration):
            self.act()


class Engine:
    """Its loss is the number of the step, but for the losses it is told to give."""

    def __init__(self, losses: dict[int, tuple[float, bool] | Result]) -> None:
        self.losses, self.steps = losses, 0

    def learning_rate(self) -> float:
        return 0.5

    def take_step(self, batches: Any, told: tuple[int, ...], samples: int, length: int | None) -> Callable[[], Result]:
        self.steps += 1
        given = self.losses.get(self.steps, (float(self.steps), False))
        result = given if isinstance(given, Result) else Result(given[0], None, given[1])
        return lambda: replace(result, told=told)

    def evaluate(self, batches: Any, count: int) -> HeldOut:
        assert count == 2
        return HeldOut(1.0, {})


class Data:
    def __init__(self) -> None:
        self.consumed: int | None = None
        self.comparison = Comparison()
        self.evaluations: list[tuple[str, int]] = []
        #: After how many samples it ends.
        self.end: int | None = None
        self.reached: list[int] = []

    def reaching(self, last: int) -> Data:
        self.reached.append(last)
        return self

    def ends_before(self, last: int) -> bool:
        return self.end is not None and self.end < last

    def train(self, consumed: int) -> None:
        self.consumed = consumed

    def held_out(self, split: str, evaluation: int = 0) -> None:
        self.evaluations.append((split, evaluation))

    def has(self, split: str) -> bool:
        return split != "test"


class Saver:
    last: Path | None = None
    pending = None
    writing = False

    def save(self, position: Position) -> Saved:
        self.last = Path(f"at{position.iteration}")
        return Saved(position, self.last)

    def finish(self) -> None: ...

    def close(self) -> None: ...


def loop(
    losses: dict[int, tuple[float, bool] | Result] | None = None, start: int = 0, read_every: int = 1, **options: Any
) -> Loop:
    given = {"train_iters": 6, "eval_interval": 0, "eval_iters": 2} | options
    saving = Checkpoint(**{name: given.pop(name) for name in list(given) if name in Checkpoint.parameters})
    training, progress = Training(**given), Progress()
    engine: Any = Engine(losses or {})
    data: Any = Data()
    saver: Any = Saver()
    trackers = Trackers([Recorder()], stops=saving.on_save_error == "stop")
    position = Position(start, 4 * start)
    saves = Saves(saving, saver, trackers, progress, saved=position if start else None)
    evaluations = Evaluations(training, engine, data, progress)
    stop, sizes = StopRequest(every=training.adlr_autoresume_interval), BatchSizes([(0, 4)])
    return Loop(
        training, sizes, engine, data, saves, evaluations, trackers, stop, progress, position, read_every=read_every
    )
