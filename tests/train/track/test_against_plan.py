"""Planned and measured time of a run: planted delays are named as what they are. Clocks are moved by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from neoxargs.facts.position import Position
from neoxargs.files import metrics as run_metrics
from neoxargs.files.metrics import LEAST, WARM_UP
from neoxargs.resolve import resolve
from neoxargs.targets.planned import Planned
from neoxargs.targets.wire_format import script_arguments
from neoxargs.train.checkpoint.saving import Saved
from neoxargs.train.engine.steps import HeldOut, Result
from neoxargs.train.loop import Loop
from neoxargs.train.process import messages
from neoxargs.train.track.against_plan import expected, line, section, verdict
from neoxargs.train.track.console import Console
from neoxargs.train.track.metrics import Metrics
from neoxargs.train.track.report_page import Page
from neoxargs.train.track.time_spent import COMPUTE, DATA, EVALUATION, MESSAGES, OTHER, SAVING, STEPS, Spent
from neoxargs.train.track.tracker import Comparison, Step, Tracker
from tests.support.counting_loop import Data, Engine, Saver, loop
from tests.support.processes import TINY, train_on_rank, write_tokens
from tests.support.ranks import run_ranks
from tests.support.snapshots import pinned
from tests.support.tracking import DONE, step
from tests.support.tracking import run as described

#: A step of 4 samples of 8 tokens, planned to take 6 to 15 seconds.
PLANNED = Planned("H100-80GB", 32, 1.5, {"compute": 7.0, "messages": 2.0, "bubble": 0.5})


class Clock:
    """Time passes only in what is planted: `seconds` by what takes them."""

    def __init__(self, **seconds: float) -> None:
        self.now, self.seconds = 0.0, seconds

    def __call__(self) -> float:
        return self.now

    def spend(self, what: str) -> None:
        self.now += self.seconds.get(what, 0.0)


class Comparisons(Tracker):
    """Takes some time for every step, as a slow tracker does."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.all = clock, list[Comparison]()

    def on_step(self, step: Step) -> None:
        self.clock.spend("track")

    def on_comparison(self, compared: Comparison) -> None:
        self.all.append(compared)


def compared(
    monkeypatch: pytest.MonkeyPatch,
    planned: Planned | None = PLANNED,
    iterations: int = 40,
    is_idle: Callable[[], bool] | None = None,
    with_messages: bool = False,
    **seconds: float,
) -> list[Comparison]:
    """The comparisons of a run that saves every 10 iterations, and evaluates every 20."""
    clock = Clock(**{"compute": 9.5} | seconds)
    monkeypatch.setattr("neoxargs.train.loop.time.perf_counter", clock)
    run = loop(train_iters=iterations, save="x", checkpoint_factor=10, eval_interval=20)
    run.spent = Spent(planned, tokens_per_sample=8, is_idle=is_idle, clock=clock, with_messages=with_messages)
    plant(run, clock)
    run.trackers.each.append(found := Comparisons(clock))
    run.run()
    return found.all


def plant(run: Loop, clock: Clock) -> None:
    """Let time pass in the loader, the engine, its evaluations and the saver."""
    engine, data, saver = run.trainer, run.data, run.saves.saver
    assert isinstance(engine, Engine) and isinstance(data, Data) and isinstance(saver, Saver)
    link, take, evaluate, save = Link(clock), engine.take_step, engine.evaluate, saver.save

    def batches(consumed: int) -> Iterator[Any]:
        while True:
            clock.spend("data")
            yield None

    def timed_step(batches: Any, told: tuple[int, ...], samples: int, length: int | None) -> Callable[[], Result]:
        next(batches)
        clock.spend("compute")
        link.send()
        link.relay()
        return take(batches, told, samples, length)

    def timed_evaluation(batches: Any, count: int) -> HeldOut:
        clock.spend("evaluate")
        link.send()
        return evaluate(batches, count)

    def timed_save(position: Position) -> Saved:
        clock.spend("save")
        return save(position)

    engine.take_step, engine.evaluate, saver.save = timed_step, timed_evaluation, timed_save  # type: ignore[method-assign]
    data.train = batches  # type: ignore[assignment, method-assign]


def test_a_run_as_planned_says_so_after_twenty_steps_and_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    early, late = compared(monkeypatch)
    assert (early.iteration, early.steps) == (WARM_UP + STEPS, STEPS)
    assert (late.iteration, late.steps) == (40, 40 - WARM_UP)
    for each in (early, late):
        assert each.parts == {"compute and messages": 9.5, DATA: 0, SAVING: 0, EVALUATION: 0, OTHER: 0}
        assert "as planned" in line(each) and each.seconds == 9.5


@pytest.mark.parametrize(
    ("planted", "named", "of_a_step"),
    [("data", DATA, 1.0), ("save", SAVING, 0.1), ("evaluate", EVALUATION, 0.05), ("track", OTHER, 1.0)],
)
def test_a_planted_delay_is_named(planted: str, named: str, of_a_step: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """In 20 steps, two checkpoints are saved, and one evaluation is made."""
    early, _ = compared(monkeypatch, **{planted: 20 / of_a_step})
    nothing = dict.fromkeys((DATA, SAVING, EVALUATION, OTHER), 0)
    assert early.parts == pytest.approx({"compute and messages": 9.5, **nothing, named: 20})
    assert f"most of it {named}" in line(early)


class Link:
    """Sends nothing, in the time that is planted."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def send(self) -> None:
        self.clock.spend("message")

    def relay(self) -> None:
        self.send()


def test_messages_are_measured_within_steps_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not twice, where one operation calls another; afterwards, nothing is measured."""
    monkeypatch.setattr(messages, "OPERATIONS", {Link: ("send", "relay")})
    send = Link.send
    found = compared(monkeypatch, with_messages=True, message=10.0)[0]
    assert found.parts == {COMPUTE: 9.5, MESSAGES: 20.0, DATA: 0, SAVING: 0, EVALUATION: 0.5, OTHER: 0}
    assert expected(found) == {COMPUTE: 7.0, MESSAGES: 2.5}
    assert verdict(found).partition(":")[0].endswith("most of it messages")
    assert Link.send is send


def test_a_wrong_plan_is_a_difference_in_computation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one process, in compute; the fault may be in either direction."""
    half = Planned("CPU", 32, 1.2, {"compute": 4.0, "optimizer": 0.75})
    double = Planned("CPU", 32, 1.2, {"compute": 19.0})
    slower, faster = (compared(monkeypatch, planned)[0] for planned in (half, double))
    assert slower.parts["compute"] == 9.5
    assert verdict(slower).partition(":")[0].endswith("most of it compute")
    assert verdict(faster).startswith("faster than planned") and "--learn" in verdict(faster)


def test_a_batch_that_arrives_while_the_gpu_computes_has_delayed_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    busy, idle = (compared(monkeypatch, is_idle=lambda answer=answer: answer, data=1.0)[0] for answer in (False, True))
    assert (busy.parts[DATA], busy.parts["compute and messages"]) == (0, 10.5)
    assert (idle.parts[DATA], idle.parts["compute and messages"]) == (1, 9.5)


def test_without_a_plan_or_enough_steps_of_its_batch_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compared(monkeypatch, None) == []
    assert compared(monkeypatch, iterations=WARM_UP + LEAST - 1) == []
    assert len(compared(monkeypatch, iterations=WARM_UP + LEAST)) == 1
    other = Planned("H100-80GB", 64, 1.5, PLANNED.parts)  # the smaller batches of a ramp
    assert compared(monkeypatch, other) == []


def comparison(iteration: int = 23, data: float = 0.002) -> Comparison:
    planned = Planned("H100-80GB", 2048, 1.25, {"compute": 0.028, "messages": 0.005, "other losses": 0.002})
    parts = {"compute and messages": 0.0377, DATA: data, SAVING: 0.0005, EVALUATION: 0.0001, OTHER: 0.0}
    return Comparison(iteration, 20, parts, planned)


def test_console(tmp_path: Path) -> None:
    """Beside the plan, only batches of the planned size are compared."""
    lines: list[str] = []
    console = Console(1, lines.append)
    console.on_start(replace(described(tmp_path), planned=comparison().planned))
    for batch in (8, 4):
        console.on_step(step(1, batch=batch))
    for data in (0.002, 0.2):
        console.on_comparison(comparison(data=data))
    pinned([*(text.split(" | ")[4] for text in lines[:2]), *lines[2:]])


def test_metrics_and_report(tmp_path: Path) -> None:
    """The report has the last comparison; a resumed run repeats none."""
    page = Page([])
    for start, iterations in ((0, (1, 2)), (1, (2,))):
        tracker = Metrics(tmp_path / run_metrics.FILE)
        tracker.on_start(described(tmp_path, start))
        page.on_start(described(tmp_path, start))
        for iteration in iterations:
            tracker.on_step(step(iteration))
            tracker.on_comparison(comparison(iteration, data=iteration / 10))
        tracker.on_end(DONE)
    rows = list(run_metrics.read(tmp_path / run_metrics.FILE))
    found = [row for row in rows if row["event"] == "plan"]
    assert [row["step"] for row in found] == [1, 2]
    assert found[1]["parts"][DATA] == 0.2 and found[1]["planned_interval"] == [0.028, 0.04375]
    page.on_save(2, tmp_path)
    html = (tmp_path / "report.html").read_text()
    assert section(rows) in html and section([]) == ""
    cells = [re.findall("<t[hd]>([^<]*)<", text) for text in section(rows).split("<tr>")[1:]]
    pinned(json.dumps(cells, indent=1))


@pytest.mark.slow
def test_a_run_of_two_ranks_compares_on_the_first(tmp_path: Path) -> None:
    """A plan that no computer reaches, through the wire format; a save and an evaluation are on the way."""
    file, planned = tmp_path / "my.yml", Planned("CPU", 4 * 32, 1.1, {"compute": 1e-6, "messages": 1e-6})
    values = {
        "run_dir": str(tmp_path / "out"),
        "data_path": str(write_tokens(tmp_path)),
        "save": str(tmp_path / "save"),
    }
    file.write_text(json.dumps({**TINY, **values, "train_iters": 24, "eval_interval": 8}))
    arguments = script_arguments(resolve([file], gpus=2), planned=planned)
    (code, output, _), (_, second, _) = run_ranks(train_on_rank, 2, arguments)
    assert code == 0 and "% of planned)" in output and second == ""
    found = [row for row in run_metrics.read(tmp_path / "out" / run_metrics.FILE) if row["event"] == "plan"]
    assert [(row["step"], row["steps"]) for row in found] == [(23, 20), (24, 21)]
    for row in found:
        assert row["verdict"].startswith("slower than planned") and row["seconds"] > sum(row["planned_parts"].values())
        assert (
            [*row["planned_parts"]] == [COMPUTE, MESSAGES]
            and min(row["parts"].values()) > 0
            and row["seconds"] == pytest.approx(sum(row["parts"].values()), rel=0.01)
        )
    assert "Planned and measured" in (tmp_path / "out" / "report.html").read_text()
