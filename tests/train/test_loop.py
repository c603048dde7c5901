"""When the loop evaluates, saves and stops, with an engine that only counts."""

from __future__ import annotations

import errno
import math
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from neoxargs.base.problems import Problem, Problems
from neoxargs.facts.position import Position
from neoxargs.train.checkpoint.saving import Saved
from neoxargs.train.engine.steps import Result
from neoxargs.train.loop import Loop
from neoxargs.train.run import read_every
from neoxargs.train.track.tracker import Answers, Outcome, Step, TaskResults, Tracker
from neoxargs.train.track.trackers import RunFolders
from tests.support.counting_loop import AtStep, Data, Engine, Recorder, Saver, loop
from tests.support.refused import ids, refused
from tests.support.small_gpt import small
from tests.support.snapshots import pinned


def happened(run: Loop, *kinds: str) -> list[tuple[Any, ...]]:
    recorder = run.trackers.each[0]
    assert isinstance(recorder, Recorder)
    return [event for event in recorder.events if not kinds or event[0] in kinds]


class Questions:
    """Prompts are continued every two iterations, tasks run every four."""

    def due(self, iteration: int) -> bool:
        return iteration % 2 == 0

    def ask(self, iteration: int, everything: bool = False) -> Iterator[TaskResults | Answers]:
        if everything or iteration % 4 == 0:
            yield TaskResults(iteration, {})
        yield Answers(iteration, [])


@pytest.mark.shows("train-iters")
def test_training_takes_train_iters_steps() -> None:
    for iterations in (2, 6):
        run = loop(train_iters=iterations)
        assert run.run().iteration == iterations
        assert happened(run, "step") == [("step", i + 1) for i in range(iterations)]


@pytest.mark.shows("eval-interval")
@pytest.mark.parametrize(("start", "before"), [(0, [0, 1, 3]), (3, [1, 3])])
def test_evaluations_are_counted_from_the_start_of_the_run(start: int, before: list[int]) -> None:
    """As in GPT-NeoX, which evaluates the last iteration twice."""
    run = loop(eval_interval=2, start=start)
    run.run()
    assert isinstance(run.data, Data)
    assert run.data.evaluations == [("validation", number) for number in before]


@pytest.mark.parametrize(
    ("start", "stop", "asked"),
    [
        (0, None, [(0, "both"), (2, "answers"), (4, "both"), (6, "both")]),
        (0, 4, [(0, "both"), (2, "answers"), (4, "both")]),
        (4, None, [(6, "both")]),
        (6, None, [(6, "both")]),
    ],
)
def test_questions_before_the_first_step_in_between_and_after_the_last(
    start: int, stop: int | None, asked: list[tuple[int, str]]
) -> None:
    run = loop(start=start, exit_interval=stop)
    run.evaluations.questions = Questions()  # type: ignore[assignment]
    run.run()
    expected = [
        (kind, iteration) for iteration, kinds in asked for kind in (["tasks"] * (kinds == "both") + ["answers"])
    ]
    assert happened(run, "tasks", "answers") == expected


def test_evaluations_at_the_interval_and_once_at_the_end() -> None:
    never = loop(eval_interval=0)
    never.run()
    assert happened(never, "validation") == [("validation", 6)]
    run = loop(eval_interval=3)
    assert run.run() == Outcome(6, "", None)
    assert happened(run) == [
        ("step", 1), ("step", 2), ("step", 3), ("validation", 3),
        ("step", 4), ("step", 5), ("step", 6), ("validation", 6),
    ]  # fmt: skip


@pytest.mark.shows("save-interval")
def test_checkpoints_at_the_interval_and_at_the_end() -> None:
    run = loop(save="x", checkpoint_factor=4, extra_save_iters=[1])
    assert run.run().checkpoint == Path("at6")
    assert happened(run, "save") == [("save", 1), ("save", 4), ("save", 6)]


def test_a_step_with_a_gradient_that_is_not_finite_is_not_saved() -> None:
    where = "first found on rank 1 on node3, where the gradient of layers.0.mlp.dense_h_to_4h.weight is NaN"
    run = loop({3: Result(2.0, math.nan, False, diverged=True, where=where)}, save="x", checkpoint_factor=1)
    with pytest.raises(Problems, match="a gradient is infinite or NaN at iteration 3, first found on rank 1") as raised:
        run.run()
    pinned(str(raised.value), "[gradient-not-finite]")
    assert happened(run, "save") == [("save", 1), ("save", 2)]


def test_nothing_is_saved_without_a_place() -> None:
    run = loop(checkpoint_factor=2)
    assert run.run().checkpoint is None
    assert not happened(run, "save")


def test_a_resumed_run_goes_on_where_it_was_in_iterations_and_samples() -> None:
    run = loop(start=4)
    run.run()
    assert happened(run, "step") == [("step", 5), ("step", 6)]
    assert run.data.consumed == 16  # type: ignore[attr-defined]


def test_it_ends_before_a_step_for_which_there_is_no_data() -> None:
    for start, steps in ((0, [1, 2, 3, 4]), (4, [])):
        run = loop(start=start, save="x")
        assert isinstance(run.data, Data)
        run.data.end = 19
        assert run.run().reason == "train_data_max_epochs" and happened(run, "step") == [("step", n) for n in steps]
        assert run.data.reached == [24]
        assert happened(run, "save") == [("save", 4)] * (start == 0)


def test_do_train_false_only_evaluates() -> None:
    run = loop(do_train=False, start=4, save="x")
    run.run()
    assert happened(run) == [("validation", 4)]


def test_a_finished_run_that_is_started_again_does_not_save_again() -> None:
    run = loop(start=6, save="x")
    run.run()
    assert not happened(run, "step", "save")


@pytest.mark.shows("exit-interval")
def test_exit_interval_saves_and_stops() -> None:
    run = loop(exit_interval=4, save="x", eval_interval=6)
    assert run.run() == Outcome(4, "exit_interval", Path("at4"))
    assert happened(run, "save", "validation") == [("save", 4)]
    complete = loop(exit_interval=3, start=3, save="x", eval_interval=6)
    assert complete.run() == Outcome(6, "", Path("at6"))
    assert happened(complete, "validation")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_run_after_the_next_step_with_a_checkpoint(number: signal.Signals) -> None:
    before = signal.signal(number, signal.default_int_handler)  # under nohup, the tests would ignore SIGHUP
    try:
        run = loop(save="x")
        run.trackers.each.append(AtStep(lambda: os.kill(os.getpid(), number), 2))
        assert run.run() == Outcome(3, number.name, Path("at3"))
        assert signal.getsignal(number) == signal.default_int_handler
    finally:
        signal.signal(number, before)


def test_a_signal_that_a_launcher_forwards_late_does_not_lose_the_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one reached the process group; this one arrives while the checkpoint is saved."""
    run = loop(save="x", exit_interval=4)
    save = run.saves.saver.save

    def signalled(position: Position) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return save(position)

    monkeypatch.setattr(run.saves.saver, "save", signalled)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        assert run.run() == Outcome(4, "exit_interval", Path("at4"))
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_run_under_nohup_does_not_stop() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        run = loop(save="x")
        run.trackers.each.append(AtStep(lambda: os.kill(os.getpid(), signal.SIGHUP)))
        assert run.run() == Outcome(6, "", Path("at6"))
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.shows("adlr-autoresume", "adlr-autoresume-interval")
@pytest.mark.parametrize(("interval", "last"), [(1, 3), (2, 4), (5, 5), (100, 6)])
def test_a_file_ends_the_run_with_a_checkpoint(tmp_path: Path, interval: int, last: int) -> None:
    """It is made in iteration 2; the run without a name for it goes on to the end."""
    file = tmp_path / "stop"
    for stop_file in (file, None):
        run = loop(save="x", adlr_autoresume_interval=interval)
        run.stop.file = stop_file
        run.trackers.each.append(AtStep(file.touch, 2))
        outcome = run.run()
        stopped = stop_file is not None and last < 6
        assert outcome == Outcome(
            last if stop_file else 6, f"found the stop file {file}" if stopped else "", Path(f"at{outcome.iteration}")
        )
        assert file.exists() != stopped


def test_a_loss_that_is_no_number_stops_without_saving() -> None:
    run = loop({5: (math.nan, False)}, save="x", checkpoint_factor=4)
    pinned(refused(run.run))
    assert happened(run, "save") == [("save", 4)]


def test_damaged_data_ends_the_run_before_the_next_step_or_checkpoint() -> None:
    """Found by the comparison in the background: no step after it, and nothing is saved of the steps on that data."""
    run = loop(save="x", checkpoint_factor=2)
    checked = iter([None] * 5 + [Problem("text.bin has changed", id="data-file-changed")])

    def check() -> None:
        if problem := next(checked):
            raise Problems(problem)

    run.data.comparison.check = check
    pinned(refused(run.run))
    # Before steps 1, 2, 3 and 4, and the two checkpoints after 2 and 4.
    assert happened(run, "save", "step") == [("step", 1), ("step", 2), ("save", 2), ("step", 3), ("step", 4)]


def test_an_overflow_that_fp16_skips_is_survived() -> None:
    assert loop({2: Result(math.inf, None, True, overflowed=True)}).run().iteration == 6


def test_steps_that_diverge_are_skipped_up_to_a_number_in_a_row() -> None:
    """The engine has skipped them; a good step in between, and an overflow that fp16 skips, are no divergence."""
    nan, overflow = (math.nan, True), Result(1.0, None, True, overflowed=True)
    run = loop({2: nan, 3: nan, 4: (1.0, False), 5: nan}, on_divergence="skip", max_skipped_steps=3)
    assert run.run().iteration == 6
    run = loop({2: nan, 3: nan, 4: overflow, 5: nan}, on_divergence="skip", max_skipped_steps=3)
    assert run.run().iteration == 6
    run = loop({2: nan, 3: (1.0, True), 4: nan}, on_divergence="skip", max_skipped_steps=3, save="x")
    pinned(refused(run.run))
    assert not happened(run, "save")


def test_a_nan_stops_by_default_also_where_deepspeed_has_skipped_the_step() -> None:
    """In bf16 under ZeRO it skips steps with infinite gradients; only fp16 recovers by skipping."""
    pinned(refused(lambda: loop({2: (math.nan, True)}).run()))


def test_overflows_of_a_fixed_loss_scale_stop_after_a_number_in_a_row() -> None:
    """A dynamic scale is lowered until gradients fit; with a fixed one the run would go on without training."""
    fixed = Result(1.0, None, True, overflowed=True, scale_is_fixed=True)
    lowered = Result(1.0, None, True, overflowed=True)
    assert loop({2: fixed, 3: fixed, 4: (1.0, False), 5: fixed}, max_skipped_steps=3).run().iteration == 6
    assert loop({2: lowered, 3: lowered, 4: lowered, 5: lowered}, max_skipped_steps=3).run().iteration == 6
    pinned(refused(lambda: loop({2: fixed, 3: fixed, 4: fixed}, max_skipped_steps=3).run()))


class FullDisk(Saver):
    """Cannot write the second checkpoint."""

    attempts = 0

    def save(self, position: Position) -> Saved:
        self.attempts += 1
        if self.attempts == 2:
            raise Problems(Problem("save (x): no space", id="checkpoint-not-saved", about=("save",)))
        return super().save(position)


@pytest.mark.parametrize("reaction", ["stop", "continue"])
def test_a_checkpoint_that_cannot_be_written(reaction: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = loop(save="x", checkpoint_factor=2, on_save_error=reaction)
    run.saves.saver = FullDisk()
    if reaction == "stop":
        with pytest.raises(Problems, match="no space"):
            run.run()
        assert happened(run, "save") == [("save", 2)]
        return
    assert run.run().checkpoint == Path("at6")
    assert happened(run, "save") == [("save", 2), ("save", 6)]
    assert "warning: save (x): no space [checkpoint-not-saved]" in capsys.readouterr().err


def test_the_last_checkpoint_must_be_written() -> None:
    run = loop(save="x", checkpoint_factor=3, on_save_error="continue")
    run.saves.saver = FullDisk()
    pinned(refused(run.run))


class Unwritable(Tracker):
    """Cannot write its file in the first three steps, or at the end."""

    def __init__(self, at_end: bool) -> None:
        self.at_end = at_end

    def on_step(self, step: Step) -> None:
        if step.iteration <= 3 and not self.at_end:
            raise OSError(errno.ENOSPC, "No space left on device")

    def on_end(self, outcome: Outcome) -> None:
        if self.at_end:
            raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("reaction", ["stop", "continue"])
def test_metrics_that_cannot_be_written(reaction: str, at_end: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """Are a problem in one sentence, or one warning; a network error is neither."""
    run = loop(on_save_error=reaction)
    run.trackers.each.append(Unwritable(at_end))
    if reaction == "stop":
        with pytest.raises(Problems, match=r"run_dir \(.\): a metrics or report file cannot be written: no space left"):
            run.run()
        return
    assert run.run().iteration == 6
    assert capsys.readouterr().err.count("[run-folder-not-written]") == 1


def test_a_folder_that_vanishes_is_restored_before_trackers_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"

    folder.mkdir()
    run = loop()
    run.trackers.folders = RunFolders({"run_dir": folder})
    run.trackers.each += [AtStep(lambda: os.stat(folder)), AtStep(folder.rmdir, 3)]
    assert run.run().iteration == 6
    assert capsys.readouterr().err.count("[run-folder-vanished]") == 1


class BackgroundSaver(Saver):
    """A saver that needs two steps for each checkpoint."""

    def __init__(self) -> None:
        self.left, self.finished = 0, []

    @property
    def writing(self) -> bool:
        self.left -= 1
        return self.left > 0

    def save(self, position: Position) -> Saved | None:  # type: ignore[override]
        before = self.finish()
        self.pending, self.left = position, 3
        return before

    def finish(self) -> Saved | None:  # type: ignore[override]
        position, self.pending = self.pending, None
        if position is None:
            return None
        self.finished.append((position.iteration, self.left))
        return super().save(position)


def test_a_checkpoint_is_finished_by_the_first_step_after_it_is_written_and_at_the_end() -> None:
    run = loop(save="x", extra_save_iters=[1, 4, 5])
    run.saves.saver = saver = BackgroundSaver()
    assert run.run() == Outcome(6, "", Path("at6"))
    assert happened(run, "save") == [("save", 1), ("save", 4), ("save", 5), ("save", 6)]
    # 1 was written when step 4 began; 4 and 5 were waited for by the next save, 6 by the end of the run
    assert saver.finished == [(1, 0), (4, 2), (5, 2), (6, 3)]
    order = [event for event in run.trackers.each[0].events if event[0] in ("save", "step")]  # type: ignore[attr-defined]
    assert order.index(("save", 1)) == order.index(("step", 4)) + 1


def test_a_run_that_diverges_while_a_checkpoint_cannot_be_written_tells_both() -> None:
    class Fails(BackgroundSaver):
        def finish(self) -> Saved | None:
            if self.pending:
                raise Problems(Problem("save (x): no space", id="checkpoint-not-saved", about=("save",)))
            return None

    run = loop({3: (math.nan, False)}, save="x", extra_save_iters=[2], on_save_error="stop")
    run.saves.saver = Fails()
    assert ids(refused(run.run)) == ["loss-not-finite", "checkpoint-not-saved"]


def test_a_run_that_diverges_finishes_the_checkpoint_that_is_being_written() -> None:
    run = loop({3: (math.nan, False)}, save="x", extra_save_iters=[2])
    run.saves.saver = BackgroundSaver()
    pinned(refused(run.run))


class Late(Engine):
    """Notes which steps were taken when the result of each is read."""

    def __init__(self, losses: dict[int, tuple[float, bool] | Result]) -> None:
        super().__init__(losses)
        self.read: list[tuple[int, int]] = []

    def take_step(self, batches: Any, told: tuple[int, ...], samples: int, length: int | None) -> Callable[[], Result]:
        result = super().take_step(batches, told, samples, length)
        number = self.steps

        def read() -> Result:
            self.read.append((number, self.steps))
            return result()

        return read


def late(read_every: int, losses: dict[int, tuple[float, bool] | Result] | None = None, **options: Any) -> Loop:
    run = loop(losses, read_every=read_every, **options)
    run.trainer = Late(losses or {})
    return run


def test_a_result_is_read_when_the_next_step_has_been_started_unless_something_follows() -> None:
    """A log line, a checkpoint, an evaluation, the end; in their order."""
    run = late(4, train_iters=9, save="x", extra_save_iters=[6], eval_interval=7)
    run.run()
    assert run.trainer.read == [(1, 2), (2, 3), (3, 4), (4, 4), (5, 6), (6, 6), (7, 7), (8, 8), (9, 9)]
    assert happened(run) == [
        *(("step", number) for number in range(1, 7)), ("save", 6), ("step", 7), ("validation", 7),
        ("step", 8), ("step", 9), ("validation", 9), ("save", 9),
    ]  # fmt: skip
    at_once = late(1, train_iters=3)
    at_once.run()
    assert at_once.trainer.read == [(1, 1), (2, 2), (3, 3)]


@pytest.mark.parametrize(
    ("device", "values", "every"),
    [
        ("cuda", {}, 100),
        ("cuda", {"log_interval": 7}, 7),
        ("cpu", {}, 1),
        ("cuda", {"profile": True}, 1),
        ("cuda", {"precision": "fp16"}, 1),
        ("cuda", {"on_divergence": "skip"}, 1),
    ],
)
def test_results_are_read_late_on_gpus_unless_a_step_is_waited_for_anyway(
    device: str, values: dict[str, Any], every: int
) -> None:
    assert read_every(small(**{"precision": "fp32"} | values), torch.device(device)) == every


def test_a_step_that_diverges_is_found_one_step_later_and_never_saved() -> None:
    run = late(100, {3: (math.nan, False)}, save="x", train_iters=9, extra_save_iters=[2, 3, 4])
    with pytest.raises(Problems, match="at iteration 3"):
        run.run()
    assert (run.trainer.steps, happened(run, "save")) == (3, [("save", 2)])
    run = late(100, {3: (math.nan, False)}, save="x", train_iters=9)
    with pytest.raises(Problems, match="at iteration 3"):
        run.run()
    assert (run.trainer.steps, happened(run, "save")) == (4, [])


def test_a_signal_is_answered_one_step_later_and_the_last_step_is_read_before_it_is_saved() -> None:
    interrupt = AtStep(lambda: os.kill(os.getpid(), signal.SIGTERM), 2)
    run = late(100, train_iters=9, save="x")
    run.trackers.each.append(interrupt)
    # Step 3 has been started when step 2 is read; step 4 tells of the signal, and is read when step 5 has been started.
    assert run.run() == Outcome(5, "SIGTERM", Path("at5"))
    assert happened(run, "step") == [("step", number) for number in range(1, 6)]
    run = late(100, {5: (math.nan, False)}, train_iters=9, save="x")
    run.trackers.each.append(interrupt)
    with pytest.raises(Problems, match="at iteration 5"):
        run.run()
    assert not happened(run, "save")


def test_a_checkpoint_in_the_background_is_never_waited_for_by_an_answer_from_before_it() -> None:
    run = late(100, save="x", extra_save_iters=[1, 4])
    run.saves.saver = saver = BackgroundSaver()
    run.run()
    # That of 1 was written when step 4 began, whose result is read at once for the next save.
    assert saver.finished == [(1, 0), (4, 1), (6, 3)]


def test_the_time_of_a_step_does_not_count_that_of_the_one_before_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step takes a second from the end of the one before it, however early it was started."""
    clock = iter(range(100))
    monkeypatch.setattr("neoxargs.train.loop.time.perf_counter", lambda: float(next(clock)))
    run = late(100, train_iters=8)
    steps: list[Step] = []

    class Times(Tracker):
        def on_step(self, step: Step) -> None:
            steps.append(step)

    run.trackers.each.append(Times())
    run.run()
    # The clock is read when a step begins and when one is read: 15 times after the first.
    assert sum(step.seconds for step in steps) == run.elapsed == 15
