"""The training loop of a trial."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from neoxargs.facts.batch_sizes import BatchSizes
from neoxargs.facts.position import Position
from neoxargs.processes.watch import Progress
from neoxargs.train.batches.comparison import Comparison
from neoxargs.train.checkpoint.save_load import Checkpoints
from neoxargs.train.evaluation.in_training import Evaluations
from neoxargs.train.loop import Loop
from neoxargs.train.process.stop_request import StopRequest
from neoxargs.train.saves import Saves
from neoxargs.train.track.tracker import Tracker
from neoxargs.train.track.trackers import Trackers
from tests.support.trials import SAMPLES, Training


class Data:
    """The micro batches of a trial; nothing is held out."""

    def __init__(self, built: Training) -> None:
        self.built, self.comparison = built, Comparison()

    def reaching(self, last: int) -> Data:
        return self

    def ends_before(self, last: int) -> bool:
        return False

    def train(self, consumed: int) -> Iterator[Any] | None:
        return self.built.micro_batches(consumed)

    def held_out(self, split: str, evaluation: int = 0) -> None:
        raise AssertionError

    def has(self, split: str) -> bool:
        return False


def loop_of(built: Training, saver: Checkpoints, trackers: Sequence[Tracker] = (), read_every: int = 1) -> Loop:
    """Return the loop of a trial from its first step, on this rank."""
    data: Any = Data(built)
    told, progress, options = Trackers(list(trackers)), Progress(), built.config.training
    saves = Saves(built.config.checkpoint, saver, told, progress)
    evaluations = Evaluations(options, built.engine, data, progress)
    stop = StopRequest()
    sizes = BatchSizes([(0, SAMPLES)])
    return Loop(
        options, sizes, built.engine, data, saves, evaluations, told, stop, progress, Position(), read_every=read_every
    )
