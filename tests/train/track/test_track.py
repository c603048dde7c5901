"""Trackers: log lines and files of a run."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from neoxargs.files import metrics as run_metrics
from neoxargs.registry.logging import Comet, Wandb
from neoxargs.train.track import console, metrics, report_page
from neoxargs.train.track.console import Console, duration
from neoxargs.train.track.metrics import Metrics
from neoxargs.train.track.progress import ProgressBar
from neoxargs.train.track.series import CometTracker, WandbTracker, scalars
from neoxargs.train.track.tracker import Evaluation, Outcome, Step, Tracker
from tests.support.refused import ids, refused
from tests.support.snapshots import pinned
from tests.support.tracking import DONE, Service, play, recorded, run, step


def test_console(tmp_path: Path) -> None:
    lines: list[str] = []
    (tmp_path / "loss.svg").touch()
    (tmp_path / "report.html").touch()
    play(Console(2, lines.append, log=tmp_path / "logs" / "train.log", tensorboard="tb"), tmp_path)
    pinned(lines)
    assert (tmp_path / "logs" / "train.log").read_text().splitlines() == lines


def test_console_reports_resuming_skipped_steps_and_interruption(tmp_path: Path) -> None:
    lines: list[str] = []
    console = Console(1, lines.append)
    console.on_start(replace(run(tmp_path, start=3), peak_tflops=0.1, kernels=["scan: a kernel"]))
    assert lines.pop() == "scan: a kernel"
    console.on_step(step(4, grad_norm=None, skipped=True))
    console.on_end(Outcome(4, "SIGTERM", None))
    assert lines[0] == "resuming after iteration 3"
    assert "grad norm" not in lines[1]
    assert "0.0123 TFLOP/s per rank (12.3% of peak)" in lines[1]
    assert lines[1].endswith("| 1 step skipped")
    assert lines[2] == "interrupted after iteration 4"
    console.on_end(Outcome(4, "exit_interval", None))
    pinned(lines[-1])


@pytest.mark.shows("log-interval")
def test_one_log_line_per_interval(tmp_path: Path) -> None:
    def logged(interval: int) -> list[str]:
        lines: list[str] = []
        play(Console(interval, lines.append), tmp_path)
        return [text.partition("/")[0] for text in lines if text.startswith("iteration")]

    assert logged(1) == [f"iteration {number}" for number in (1, 2, 3, 4)]
    assert logged(3) == ["iteration 3", "iteration 4"]


def test_console_says_that_all_iterations_are_done_already(tmp_path: Path) -> None:
    lines: list[str] = []
    play(Console(2, lines.append), tmp_path, start=4)
    assert lines[0].startswith("iteration 4 of 4 is already done: to continue, increase train_iters")
    assert lines[1] == "done"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(3, "3 s"), (89, "89 s"), (600, "10 min"), (12_000, "3 h 20 min"), (200_000, "2 d 7 h")],
)
def test_duration(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(("loss", "perplexity"), [(0.0, "1"), (60.0, "1.142e+26"), (1e4, "1.014e+304")])
def test_the_perplexity_is_the_exponential_of_the_loss(loss: float, perplexity: str, tmp_path: Path) -> None:
    lines: list[str] = []
    console, held_out = Console(2, lines.append), Evaluation(1, "validation", loss)
    console.on_start(run(tmp_path))
    console.on_eval(held_out)
    assert f"perplexity {perplexity}" in " | ".join(lines)
    shown = report_page.page(recorded(tmp_path, step(1), held_out), "", [], tmp_path)
    assert f"<b>{perplexity}</b><span>perplexity</span>" in shown


def test_metrics(tmp_path: Path) -> None:
    play(Metrics(tmp_path / "new" / run_metrics.FILE), tmp_path)
    rows = list(run_metrics.read(tmp_path / "new" / run_metrics.FILE))
    assert [(row["event"], row["step"]) for row in rows] == [
        ("start", 0), ("step", 1), ("step", 2), ("evaluation", 2), ("save", 2), ("step", 3), ("step", 4),
    ]  # fmt: skip
    assert rows[0]["unigram_entropy"] == 3.5
    assert rows[1] == {
        "event": "step", "step": 1, "loss": 3.0, "lr": 1e-3, "tokens_per_second": 4096.0, "tflops": 0.012288,
        "elapsed": 0.5, "batch": 8, "samples": 8, "grad_norm": 0.5, "memory": 2**30,
    }  # fmt: skip


def test_a_loss_that_is_no_number_is_null(tmp_path: Path) -> None:
    row = recorded(tmp_path, step(1, loss=float("inf"), skipped=True))[-1]
    assert row["loss"] is None
    assert row["skipped"] is True


def test_a_resumed_run_repeats_no_row(tmp_path: Path) -> None:
    path = tmp_path / run_metrics.FILE
    play(Metrics(path), tmp_path)
    with path.open("a") as file:
        file.write('{"event": "step", "st')  # killed here
    assert metrics.elapsed(path, 3) == 1.5
    play(Metrics(path), tmp_path, start=3)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["step"] for row in rows if row["event"] == "step"] == [1, 2, 3, 4]


def test_a_finished_run_that_is_started_again_repeats_no_evaluation(tmp_path: Path) -> None:
    play(Metrics(tmp_path / run_metrics.FILE), tmp_path)
    for _ in range(2):
        rows = recorded(tmp_path, Evaluation(4, "test", 2.0), of=run(tmp_path, start=4))
    found = [(row["split"], row["step"]) for row in rows if row["event"] == "evaluation"]
    assert found == [("validation", 2), ("test", 4)]


@pytest.mark.parametrize("removed", [True, False])
def test_rows_are_written_to_the_folder_of_the_run_also_if_it_is_another_one(tmp_path: Path, removed: bool) -> None:
    """The first folder was removed or renamed, and another one was created."""
    folder, renamed = tmp_path / "run", tmp_path / "renamed"
    tracker = Metrics(folder / run_metrics.FILE)
    tracker.on_start(run(folder))
    tracker.on_step(step(1))
    folder.rename(renamed)
    if removed:
        shutil.rmtree(renamed)
    folder.mkdir()
    for iteration in (2, 3):
        tracker.on_step(step(iteration))
    tracker.on_end(DONE)
    assert [row["step"] for row in run_metrics.read(folder / run_metrics.FILE)] == [2, 3]
    assert removed or [row["step"] for row in run_metrics.read(renamed / run_metrics.FILE)] == [0, 1]


def test_a_folder_that_is_replaced_by_a_file_is_an_error_until_it_is_back(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    tracker = Metrics(folder / run_metrics.FILE)
    tracker.on_start(run(folder))
    folder.rename(tmp_path / "renamed")
    folder.touch()
    for iteration in (1, 2):
        with pytest.raises(NotADirectoryError):
            tracker.on_step(step(iteration))
    folder.unlink()
    for iteration in (3, 4):
        with pytest.raises(FileNotFoundError):
            tracker.on_step(step(iteration))
    folder.mkdir()
    tracker.on_step(step(5))
    tracker.on_end(DONE)
    assert [row["step"] for row in run_metrics.read(folder / run_metrics.FILE)] == [5]


def test_a_new_run_starts_a_new_file(tmp_path: Path) -> None:
    for _ in range(2):
        play(Metrics(tmp_path / run_metrics.FILE), tmp_path)
    assert sum(row["event"] == "start" for row in run_metrics.read(tmp_path / run_metrics.FILE)) == 1


def test_progress_keeps_lines_above_the_bar() -> None:
    from rich.console import Console as Terminal

    screen = io.StringIO()
    bar = ProgressBar(Terminal(file=screen, force_terminal=True, width=100))
    bar.on_start(run(Path()))
    bar.on_step(step(1))
    bar.write("a line [not markup]")
    bar.on_step(step(2))
    bar.on_end(DONE)
    text = screen.getvalue()
    assert "a line [not markup]" in text
    assert "loss 2.0000" in text
    assert "4,096 tokens/s" in text


@pytest.mark.shows("tensorboard-dir")
def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from neoxargs.train.track.series import TensorBoard

    play(TensorBoard(str(tmp_path / "tb")), tmp_path)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tb")).Reload()
    assert [event.value for event in events.Scalars("train/lm_loss")] == [3.0, 2.0, 1.0, 0.0]
    assert [event.step for event in events.Scalars("validation/lm_loss")] == [2]


def test_profile(tmp_path: Path) -> None:
    import torch

    from neoxargs.train.track.profile import Profile

    class Work(Tracker):
        def on_step(self, step: Step) -> None:
            torch.ones(2, 2) @ torch.ones(2, 2)

    first, profile = Work(), Profile(1, 3)
    for tracker in (first, profile):
        tracker.on_start(run(tmp_path))
    for iteration in range(1, 5):
        for tracker in (first, profile):
            tracker.on_step(step(iteration))
    profile.on_end(DONE)
    products = next(line for line in (tmp_path / "profile.txt").read_text().splitlines() if "aten::mm" in line)
    assert products.split()[-1] == "2"
    assert json.loads((tmp_path / "profile.json").read_text())["traceEvents"]


@pytest.mark.parametrize("times", [False, True])
def test_memory_on_a_cpu(times: bool, tmp_path: Path) -> None:
    """torch ends a process in which two of its profilers run."""
    import torch

    from neoxargs.train.track.profile import Profile

    profile = Profile(1, 2, times, memory=True, path=str(tmp_path / "memory"))
    profile.on_start(run(tmp_path / "run"))
    profile.on_step(step(1))
    kept = torch.ones(1000)
    profile.on_step(step(2))
    profile.on_end(DONE)
    trace = json.loads((tmp_path / "memory" / "mem_snapshot.json").read_text())["traceEvents"]
    assert kept.nbytes in [event["args"]["Bytes"] for event in trace if event["name"] == "[memory]"]
    assert (tmp_path / "run" / "profile.json").exists() == (tmp_path / "run" / "profile.txt").exists() == times


def test_memory_history_of_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from neoxargs.train.track.profile import MemoryHistory

    service = Service()
    monkeypatch.setattr(torch.cuda, "memory", service)
    play(MemoryHistory(None), tmp_path / "run")
    play(MemoryHistory(str(tmp_path / "named.pickle")), tmp_path)
    written = [arguments[0] for name, arguments, _ in service.calls if name == "_dump_snapshot"]
    assert written == [str(tmp_path / "run" / "mem_snapshot.pickle"), str(tmp_path / "named.pickle")]
    assert [name for name, _, _ in service.calls[:3]] == [
        "_record_memory_history", "_dump_snapshot", "_record_memory_history",
    ]  # fmt: skip


def test_what_was_asked_for_besides_is_reported_under_its_own_name(tmp_path: Path) -> None:
    reported = step(1, reports={"gradient_norms/final_norm.weight": 0.25})
    assert recorded(tmp_path, reported)[1]["gradient_norms/final_norm.weight"] == 0.25
    assert scalars(run(tmp_path), reported)["gradient_norms/final_norm.weight"] == 0.25


def test_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service()
    monkeypatch.setitem(sys.modules, "wandb", service)
    play(WandbTracker(Wandb(wandb_project="p", wandb_team="t"), {"num_layers": 2}), tmp_path)
    start = next(options for name, _, options in service.calls if name == "init")
    assert (start["project"], start["entity"], start["config"]) == ("p", "t", {"num_layers": 2})
    logged = [(arguments[0], options["step"]) for name, arguments, options in service.calls if name == "log"]
    assert [(row["train/lm_loss"], number) for row, number in logged if "train/lm_loss" in row] == [
        (3.0, 1), (2.0, 2), (1.0, 3), (0.0, 4),
    ]  # fmt: skip
    assert ({"validation/lm_loss": 2.5}, 2) in logged
    assert service.calls[-1][0] == "finish"


def test_comet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service()
    monkeypatch.setitem(sys.modules, "comet_ml", service)
    play(CometTracker(Comet(comet_project="p", comet_tags=["x"]), {}), tmp_path)
    assert [name for name, _, _ in service.calls] == [
        "start", "add_tags", "log_others", "log_parameters", "log_metrics", "log_metrics", "log_metrics",
        "log_metrics", "log_metrics", "end",
    ]  # fmt: skip


def test_a_service_that_is_not_installed_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert ids(refused(lambda: WandbTracker(Wandb(), {}))) == ["package-missing"]


def test_an_evaluation_reports_what_the_loss_measures(tmp_path: Path) -> None:
    lines: list[str] = []
    measured = Evaluation(2, "validation", 0.5, reports={"reward_acc": 0.625, "margins": 1.5, "ref_pos": -3.0})
    console = Console(1, lines.append)
    console.on_start(replace(run(tmp_path), has_perplexity=False))
    console.on_eval(measured)
    pinned(lines)
    row = recorded(tmp_path, measured)[-1]
    assert row["validation/reward_acc"] == 0.625 and row["validation/ref_pos"] == -3
    assert measured.series["validation/margins"] == 1.5


def test_a_line_during_a_ramp_has_the_batch_and_the_time_that_the_samples_left_take(tmp_path: Path) -> None:
    ramped = replace(run(tmp_path), samples=4120, batch_size_changes=True)
    # 24 samples take 2 s, so 4000 take 333 s.
    line = console.line(ramped, [step(1, seconds=1.0), step(2, batch=16, samples=120, seconds=1.0)])
    assert {"batch 16", "3,072 tokens/s", "6 min left", "120 samples"} < {*line.split(" | ")}
    assert "batch" not in console.line(run(tmp_path), [step(4)])


def test_the_batch_of_each_step_is_in_the_series_and_the_metrics(tmp_path: Path) -> None:
    ramped, row = replace(run(tmp_path), batch_size_changes=True), step(1, batch=4, seconds=2.0)
    found = scalars(ramped, row)
    assert (found["train/batch_size"], found["runtime/samples_per_sec"], found["runtime/tokens_per_sec"]) == (4, 2, 512)
    [_, written] = recorded(tmp_path, row, of=ramped)
    assert (written["batch"], written["tokens_per_second"]) == (4, 512.0)


@pytest.mark.parametrize(("count", "titles"), [
    (0, []), (8, ["Validation sets"]), (9, ["Validation sets 1 to 8", "Validation sets 9"]),
])  # fmt: skip
def test_every_validation_set_is_drawn(count: int, titles: list[str], tmp_path: Path) -> None:
    sets = [Evaluation(1, f"validation/set{number}", 2.0) for number in range(count)]
    text = report_page.page(recorded(tmp_path, step(1), *sets), "", [], tmp_path)
    charts = re.findall('aria-label="(Validation sets[^"]*)"(.*?)</svg></figure>', text)
    assert [title for title, _ in charts] == titles
    assert all(f"<title>set{number} after" in "".join(drawn for _, drawn in charts) for number in range(count))


def test_a_step_of_shorter_sequences_has_their_length_and_operations(tmp_path: Path) -> None:
    grown = replace(run(tmp_path), flops_by_length={32: 3e6, 128: 6e6}, ranks=1)
    short, whole = step(1, length=32, seconds=2.0), step(2, seconds=2.0)
    assert [scalars(grown, each)["train/seq_length"] for each in (short, whole)] == [32, 128]
    rates = [scalars(grown, each)["runtime/tflops_per_rank"] for each in (short, whole)]
    assert rates[0] == rates[1] / 2
    assert "sequences of 32" in console.line(grown, [whole, short]).split(" | ")
    assert recorded(tmp_path, short, of=grown)[-1]["seq_length"] == 32
    assert "train/seq_length" not in scalars(run(tmp_path), whole)
