"""A signal to one rank stops all of them after the same step, and asking costs no collective of its own."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import torch
import torch.distributed as dist

from neoxargs.train.process import mesh, setup
from neoxargs.train.process.stop_request import StopRequest
from neoxargs.train.track.tracker import Outcome, Step, Tracker
from tests.support.collectives import logged
from tests.support.loops import loop_of
from tests.support.ranks import run_ranks
from tests.support.trials import Training, Trial

LAYOUTS = {2: Trial(), 4: Trial({"pipe_parallel_size": 2})}
STEPS = 6


def interrupted(trial: Trial, folder: str, rank: int, at: int, read_every: int) -> Outcome:
    """Run until the signal that `rank` receives in its step `at`, and return how the run ended there."""
    process = setup.start("gloo", seed=1)
    built = Training(trial, train_iters=STEPS, save=folder)
    loop = loop_of(built, built.checkpoints(process), read_every=read_every)
    take, before = built.engine.take_step, signal.getsignal(signal.SIGTERM)

    def take_and_signal(*arguments: Any) -> Any:
        if process.rank == rank and loop.position.iteration == at - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return take(*arguments)

    built.engine.take_step = take_and_signal
    outcome = loop.run()
    assert signal.getsignal(signal.SIGTERM) == before
    mesh.destroy_groups()
    return outcome


@pytest.mark.parametrize("world", LAYOUTS)
@pytest.mark.parametrize(("read_every", "last"), [(1, 3), (100, 4)], ids=["read at once", "read later"])
def test_all_ranks_stop_after_the_same_step_and_save(world: int, read_every: int, last: int, tmp_path: Any) -> None:
    """The signal arrives at the last rank during step 2: the ranks learn of it in step 3."""
    found = run_ranks(interrupted, world, LAYOUTS[world], str(tmp_path), world - 1, 2, read_every)
    checkpoint = tmp_path / f"global_step{last}"
    assert found == [Outcome(last, "SIGTERM", checkpoint)] * world
    assert checkpoint.is_dir()


class Barrier(StopRequest):
    """Asks before the step, and waits."""

    def tell(self, iteration: int, busy: bool = False) -> tuple[int, int]:
        told = super().tell(iteration, busy)
        dist.all_reduce(torch.tensor(told), dist.ReduceOp.MAX)
        return told


class Marks(Tracker):
    """Notes how many collectives there were when each step was read."""

    def __init__(self, log: list[Any]) -> None:
        self.log, self.counts = log, []

    def on_step(self, step: Step) -> None:
        self.counts.append(len(self.log))


def collectives(trial: Trial, planted: bool) -> tuple[list[Any], list[Any]]:
    """Return the collectives of the second step: without the training loop, and within it."""
    process = setup.start("gloo", seed=1)
    alone, within = Training(trial), Training(trial, train_iters=2)
    alone.step()
    with logged() as of_a_step:
        alone.engine.take_step(alone.batches, (0, 0))()
    loop = loop_of(within, within.checkpoints(process))
    if planted:
        loop.stop = Barrier()
    with logged() as log:
        marks = Marks(log)
        loop.trackers.each.append(marks)
        loop.run()
    first, second = marks.counts
    mesh.destroy_groups()
    return of_a_step, log[first:second]


@pytest.mark.parametrize("world", LAYOUTS)
def test_the_loop_adds_no_collective_to_a_step(world: int) -> None:
    for alone, within in run_ranks(collectives, world, LAYOUTS[world], False):
        assert alone
        assert alone == within
    for alone, within in run_ranks(collectives, world, LAYOUTS[world], True):
        assert alone == within[1:], "the one that was planted comes before the step"
