"""What the trackers make of tasks and answers during training."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from neoxargs.registry.logging import Comet, Wandb
from neoxargs.train.track.console import Console, one_line
from neoxargs.train.track.report_page import MAX_TASK_CHARTS, page
from neoxargs.train.track.sections import MAX_BETWEEN, answers
from neoxargs.train.track.series import CometTracker, TensorBoard, WandbTracker, as_markdown
from neoxargs.train.track.tracker import Answers, TaskResults, Tracker
from tests.support.snapshots import pinned
from tests.support.tracking import ANSWERS, DONE, TASKS, Service, recorded, run, step


def told(tracker: Tracker, folder: Path, start: int = 0) -> None:
    tracker.on_start(run(folder, start))
    for iteration in range(start + 1, 3):
        tracker.on_step(step(iteration))
    TASKS.tell(tracker)
    ANSWERS.tell(tracker)


def test_series_have_the_names_of_gpt_neox() -> None:
    assert TASKS.series == {"eval/letters_acc": 0.25, "eval/letters_acc_stderr": 0.125}


def test_console(tmp_path: Path) -> None:
    lines: list[str] = []
    told(Console(5, lines.append), tmp_path)
    pinned(lines)


def test_long_texts_on_one_line() -> None:
    assert one_line("é\n\x1b[1m") == r"é\n\x1b[1m"
    assert one_line("abcdef", 4) == "abc…"
    assert one_line("abcdef", 4, end=True) == "…def"
    assert one_line("abcd", 4) == "abcd"


def test_metrics_of_a_run_that_is_started_again(tmp_path: Path) -> None:
    odd = TaskResults(2, {"odd": {"acc": float("nan")}})
    for start in (0, 1):
        rows = recorded(tmp_path, *map(step, range(start + 1, 3)), TASKS, ANSWERS, odd, of=run(tmp_path, start))
    assert [row for row in rows if row["event"] in ("tasks", "answers")] == [
        {"event": "tasks", "step": 2, "results": {"letters": {"acc": 0.25, "acc_stderr": 0.125}}},
        {"event": "answers", "step": 2, "answers": [
            {"prompt": "a <b>", "text": "\n  c & d", "finished": True},
            {"prompt": "é", "text": "f", "finished": False},
        ]},
        {"event": "tasks", "step": 2, "results": {"odd": {"acc": None}}},
    ]  # fmt: skip


def test_a_finished_run_that_is_started_again_is_asked_again(tmp_path: Path) -> None:
    for start in (0, 4):
        rows = recorded(tmp_path, TaskResults(4, {}), Answers(4, []), of=run(tmp_path, start))
    assert [row["event"] for row in rows] == ["start", "start", "tasks", "answers"]


def test_tensorboard(tmp_path: Path) -> None:
    tracker = TensorBoard(str(tmp_path / "tensorboard"))
    told(tracker, tmp_path)
    tracker.on_end(DONE)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    assert [(event.step, event.value) for event in found.Scalars("eval/letters_acc")] == [(2, 0.25)]
    (text,) = found.Tensors("answers/1/text_summary")
    assert text.tensor_proto.string_val[0].decode() == as_markdown(ANSWERS.answers[0])
    assert as_markdown(ANSWERS.answers[0]) == "    a <b>\n\n    \n      c & d"


def test_wandb_and_comet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service()
    monkeypatch.setattr("neoxargs.train.track.series._installed", lambda *_: service)
    told(WandbTracker(Wandb(), {}), tmp_path, start=2)
    tasks, (_, _, table), answers = service.calls[-3:]
    assert tasks == ("log", (TASKS.series,), {"step": 2})
    assert dict(zip(table["columns"], table["data"][0], strict=True)) == {
        "iteration": 2, "prompt": "a <b>", "answer": "\n  c & d",
    }  # fmt: skip
    assert answers == ("log", ({"answers": service},), {"step": 2})
    told(CometTracker(Comet(), {}), tmp_path, start=2)
    tasks, answer, _ = service.calls[-3:]
    assert tasks == ("log_metrics", (TASKS.series,), {"step": 2})
    assert answer == ("log_text", ("\n  c & d",), {"step": 2, "metadata": {"prompt": "a <b>"}})


def answered(iteration: int, text: str, prompt: str = "p") -> dict[str, Any]:
    return {"event": "answers", "step": iteration, "answers": [{"prompt": prompt, "text": text, "finished": True}]}


def test_the_page_shows_the_first_and_the_last_answer_side_by_side(tmp_path: Path) -> None:
    text = page(recorded(tmp_path, step(1), step(2), TASKS, ANSWERS), "done", [], tmp_path)
    assert "<pre>\na &lt;b&gt;</pre>" in text
    assert "<pre>\n\n  c &amp; d</pre>" in text and "<pre>\nf <i>…</i></pre>" in text
    assert text.count("after iteration 2</h3>") == 2 and "<details>" not in text
    assert re.search(r'class="title"[^>]*>letters<.*?class="unit"[^>]*>acc<', text)
    assert "stderr" not in text
    pair = answers([answered(0, "before"), answered(4, "between"), answered(8, "after")])
    assert re.findall(r"<h3>([^<]*)</h3>", pair) == ["prompt", "before training", "after iteration 8",
                                                     "after iteration 4"]  # fmt: skip
    assert pair.index("after</pre>") < pair.index("<details>") < pair.index("between</pre>")


def test_an_answer_that_cannot_be_seen_is_described() -> None:
    text = answers([answered(0, "  \n", prompt=""), answered(4, " x", prompt="")])
    pinned(re.findall(r"<pre>\n(.*?)</pre>", text, re.DOTALL))


def test_a_page_with_many_tasks_and_answers_is_small() -> None:
    results = {f"task{number}": {"acc": 0.5} for number in range(50)}
    trained = {"loss": 1.0, "lr": 1.0, "tokens_per_second": 1.0, "elapsed": 1.0, "samples": 1}
    rows = [{"event": "step", "step": 1, **trained},
            {"event": "tasks", "step": 1, "results": results},
            *(answered(iteration, f"said {iteration}") for iteration in range(1000))]  # fmt: skip
    text = page(rows, "done", [], Path("x"))
    assert text.count("<circle") == MAX_TASK_CHARTS
    assert text.count("said ") == MAX_BETWEEN + 2


def test_without_answers_there_is_no_section() -> None:
    assert answers([{"event": "step", "step": 1}]) == ""
    assert answers([{"event": "answers", "step": 0, "answers": []}]) == ""
