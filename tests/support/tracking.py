"""Sends the events of a run of four steps to a tracker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from neoxargs.files.metrics import FILE, read
from neoxargs.train.track.metrics import Metrics
from neoxargs.train.track.tracker import Answer, Answers, Evaluation, Outcome, Run, Step, TaskResults, Tracker

DONE = Outcome(4, "", Path("ckpt/global_step4"))


def run(folder: Path, start: int = 0) -> Run:
    return Run(folder, 4, start, tokens_per_sample=256, samples=32, ranks=2,
               parameters=10**6, flops_per_token=6e6, unigram_entropy=3.5)  # fmt: skip


def step(iteration: int, **changes: Any) -> Step:
    values = {"loss": 4.0 - iteration, "lr": 1e-3, "grad_norm": 0.5, "seconds": 0.5, "elapsed": 0.5 * iteration,
              "memory": 2**30, "batch": 8, "samples": 8 * iteration}  # fmt: skip
    return Step(iteration, **values | changes)


def recorded(folder: Path, *events: Step | Evaluation | TaskResults | Answers, of: Run | None = None) -> list[Any]:
    """Return the rows in metrics.jsonl of a run to which these events happened. of: the run, if not `run(folder)`."""
    tracker = Metrics(folder / FILE)
    tracker.on_start(of or run(folder))
    for event in events:
        if isinstance(event, Step):
            tracker.on_step(event)
        else:
            event.tell(tracker)
    tracker.on_end(DONE)
    return list(read(folder / FILE))


class Service:
    """Stand-in for wandb and comet_ml that records every call on itself and on its results."""

    Error = ValueError

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any, Any]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **options: Any) -> Service:
            self.calls.append((name, arguments, options))
            return self

        return call


TASKS = TaskResults(2, {"letters": {"acc": 0.25, "acc_stderr": 0.125}})
ANSWERS = Answers(2, [Answer("a <b>", "\n  c & d", finished=True), Answer("é", "f", finished=False)])


def play(tracker: Tracker, folder: Path, start: int = 0) -> None:
    """Send the events from step `start` + 1 to 4, with an evaluation and a checkpoint after step 2."""
    tracker.on_start(run(folder, start))
    for iteration in range(start + 1, 5):
        tracker.on_step(step(iteration))
        if iteration == 2:
            tracker.on_eval(Evaluation(2, "validation", 2.5))
            tracker.on_save(2, folder / "global_step2")
    tracker.on_end(DONE)
