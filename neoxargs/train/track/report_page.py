"""report.html in `run_dir`, a summary of the run on one page without scripts or network, and its curve as loss.svg."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

from neoxargs.base.charts.html_page import html_page
from neoxargs.base.charts.line_chart import PHONE, STYLE, Chart, Point, Series, draw, figure, smoothed, standalone
from neoxargs.base.files import replace_text
from neoxargs.facts import timeline_page
from neoxargs.facts.timeline import Timeline
from neoxargs.files.metrics import ACCURACIES, FILE, is_cross_entropy, perplexity, read
from neoxargs.train.track import against_plan, sections
from neoxargs.train.track.console import duration, ending, is_error
from neoxargs.train.track.tracker import Outcome, Run, Tracker

REPORT, CURVE = "report.html", "loss.svg"
Rows = Sequence[Mapping[str, Any]]
#: Column of metrics.jsonl -> title and unit of its chart. A column without values is not drawn.
CHARTS = {
    "lr": ("Learning rate", ""),
    "batch": ("Batch size", "samples"),
    "seq_length": ("Sequence length", "tokens"),
    "grad_norm": ("Gradient norm", "before clipping"),
    "tokens_per_second": ("Throughput", "tokens/s"),
    "memory": ("Peak memory on rank 0", "bytes"),
    "train/margins": ("Reward margin", "chosen minus rejected answer"),
    "train/margin": ("Reward margin", "preferred minus rejected answer"),
    "train/reward_acc": ("Reward accuracy", "share of the pairs or answers"),
    "train/accuracy": ("Reward accuracy", "share of the pairs"),
    "train/kl": ("Distance from the reference model", "nats per token"),
}
#: Columns that are drawn only if their values differ.
VARYING = ("batch", "seq_length")
#: Maximum number of charts of tasks; metrics.jsonl has the results of all.
MAX_TASK_CHARTS = 12
#: Files of `run_dir` that the page links to, if they exist.
FILES = {
    "config.json": "configuration",
    "run.lock.yml": "lock file",
    FILE: "metrics",
    CURVE: "loss curve",
    "profile.txt": "profile",
}


class Page(Tracker):
    """Writes the page at every checkpoint, so that a killed run has one too, and at the end.

    description: label and text of each line of the summary at the top of the page. planned: returns what the run was to
    do; it may read large indexes of token files, so it is called when the page is first written.
    """

    def __init__(self, description: Sequence[tuple[str, str]], planned: Callable[[], Timeline] | None = None) -> None:
        self.description, self.planned = description, planned

    @cached_property
    def timeline(self) -> Timeline | None:
        return self.planned() if self.planned else None

    def on_start(self, run: Run) -> None:
        self.run, self.started = run, _now()

    def on_save(self, iteration: int, folder: Path) -> None:
        self._write(f"iteration {iteration} of {self.run.iterations}")

    def on_end(self, outcome: Outcome) -> None:
        state = ending(outcome)
        self._write(f"{outcome.iteration} iterations done" if state == "done" else state)

    def _write(self, state: str) -> None:
        folder = self.run.folder
        began = f"resumed at iteration {self.run.start}" if self.run.start else "started"
        here = [(began, self.started), ("written", _now()), ("host of rank 0", socket.gethostname())]
        rows = list(read(folder / FILE))
        if chart := _loss(rows):
            replace_text(folder / CURVE, standalone(chart))
            replace_text(folder / REPORT, page(rows, state, [*self.description, *here], folder, self.timeline))


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"


def page(
    rows: Rows,
    state: str,
    description: Sequence[tuple[str, str]],
    folder: Path,
    timeline: Timeline | None = None,
) -> str:
    """Return the page as HTML; "" if the rows contain no step. state: progress or outcome, shown beside the title."""
    loss = _loss(rows)
    if loss is None:
        return ""
    steps = [row for row in rows if row["event"] == "step"]
    name = folder.resolve().name
    constant = [column for column in VARYING if len({row.get(column) for row in steps}) == 1]
    charts = [
        Chart(title, unit, _curves(rows, steps, column, title))
        for column, (title, unit) in CHARTS.items()
        if _points(steps, column) and not (timeline and column == "lr") and column not in constant
    ]
    planned = timeline_page.section(timeline, _points(steps, "lr")) if timeline else ""
    content = CONTENT.format(
        name=escape(name),
        state=escape(state),
        tiles="".join(f"<div><b>{escape(value)}</b><span>{escape(what)}</span></div>" for what, value in _tiles(rows)),
        description="".join(f"<dt>{escape(label)}</dt><dd>{escape(text)}</dd>" for label, text in description),
        loss=figure(loss),
        charts="".join(f"<figure>{draw(chart, PHONE)}</figure>" for chart in [*_sets(rows), *charts, *_tasks(rows)]),
        answers=sections.answers(rows),
        spikes=sections.spikes(rows),
        against=against_plan.section(rows),
        planned=f"<h2>As configured</h2>\n{planned}" if planned else "",
        links=" · ".join(f'<a href="{file}">{text}</a>' for file, text in FILES.items() if (folder / file).exists()),
    )
    styles = (STYLE, timeline_page.STYLE, sections.STYLE, against_plan.STYLE)
    return html_page(name, "".join(styles), content)


def _points(rows: Rows, column: str) -> list[Point]:
    return [(row["step"], row[column]) for row in rows if row.get(column) is not None]


def _curves(rows: Rows, steps: Rows, column: str, title: str) -> list[Series]:
    """Return the curve of a column, and that of evaluations, if they have the same measure."""
    kind, _, name = column.partition("/")
    held_out = _points(rows, f"validation/{name}") if kind == "train" else []
    validation = [Series("validation", "validation", held_out, dots=True)] if held_out else []
    return [Series("training" if held_out else title, "train", _points(steps, column)), *validation]


def _loss(rows: Rows) -> Chart | None:
    """Return the chart of the training loss with its moving average, the held-out losses and the unigram entropy.

    None if the rows contain no step with a loss.
    """
    steps = [row for row in rows if row["event"] == "step"]
    losses = _points(steps, "loss")
    if not losses:
        return None
    series = [smoothed("training", "train", losses)]
    for split in ("validation", "test"):
        points = _points([row for row in rows if row.get("split") == split], "loss")
        series.append(Series(split, split, points, dots=True))
    of_step = dict(losses)
    at = sorted({row["iteration"] for row in rows if row["event"] == "spike"})
    found = [(step, of_step[step]) for step in at if step in of_step]
    series.append(Series("spikes", "mark", found, dots=True, joined=False))
    entropy = next((row["unigram_entropy"] for row in reversed(rows) if "unigram_entropy" in row), None)
    level = ("unigram entropy", entropy) if entropy is not None else None
    unit = "nats per token" if is_cross_entropy(steps[-1]) else "of preference training"
    return Chart("Loss", unit, series, floats=True, level=level)


def _sets(rows: Rows) -> Iterator[Chart]:
    """Yield charts of the losses of the named validation sets, of as many sets each as there are colours."""
    of_sets: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if name := row.get("split", "").partition("/")[2]:
            of_sets.setdefault(name, []).append(row)
    names, most = [*of_sets], len(timeline_page.SOURCE_COLOURS)
    for start in range(0, len(names), most):
        chosen = names[start : start + most]
        ends = dict.fromkeys((start + 1, start + len(chosen)))
        which = f" {' to '.join(map(str, ends))}" if len(names) > most else ""
        series = [
            Series(name, f"source{number}", _points(of_sets[name], "loss"), dots=True)
            for number, name in enumerate(chosen)
        ]
        yield Chart(f"Validation sets{which}", "nats per token", series, floats=True)


def _tasks(rows: Rows) -> list[Chart]:
    """Return a chart of each metric of each task, up to MAX_TASK_CHARTS."""
    points: dict[tuple[str, str], list[Point]] = {}
    for row in (row for row in rows if row["event"] == "tasks"):
        for task, values in row["results"].items():
            for metric, value in values.items():
                if value is not None and not is_error(metric):
                    points.setdefault((task, metric), []).append((row["step"], value))
    return [
        Chart(task, metric.replace("_", " "), [Series(f"{task}, {metric}", "validation", of, dots=True)], floats=True)
        for (task, metric), of in list(points.items())[:MAX_TASK_CHARTS]
    ]


def _tiles(rows: Rows) -> list[tuple[str, str]]:
    """Return label and value of the key figures at the top of the page."""
    steps = [row for row in rows if row["event"] == "step"]
    held_out = [row for row in rows if row.get("split") == "validation"]
    last, tiles = steps[-1], []
    # The mean of the last 2 % of the steps, because the loss of a single step is noisy.
    recent = steps[-max(1, len(steps) // 50) :]
    tiles += [("training loss", f"{loss:.4f}") for loss in _mean(recent, "loss")]
    tiles += _accuracies(recent, "train/")
    if held_out:
        loss = held_out[-1]["loss"]
        tiles.append(("validation loss", "not finite" if loss is None else f"{loss:.4f}"))
        tiles += _accuracies(held_out[-1:], "validation/")
        if is_cross_entropy(last) and loss is not None:
            tiles.append(("perplexity", f"{perplexity(loss):.4g}"))
    speeds = sorted(row["tokens_per_second"] for row in steps)
    tiles += [
        ("tokens/s, median", f"{speeds[len(speeds) // 2]:,.0f}"),
        ("samples", f"{last['samples']:,}"),
        ("time in training steps", duration(last["elapsed"])),
    ]
    return tiles


def _accuracies(rows: Rows, prefix: str) -> list[tuple[str, str]]:
    """Return label and value of the mean reward accuracy, if there is one."""
    label = "validation accuracy" if prefix == "validation/" else "reward accuracy"
    return [(label, f"{mean:.1%}") for name in ACCURACIES for mean in _mean(rows, prefix + name)]


def _mean(rows: Rows, column: str) -> list[float]:
    """Return the mean of a column, or nothing if it has no values."""
    values = [row[column] for row in rows if row.get(column) is not None]
    return [sum(values) / len(values)] if values else []


CONTENT = """
<header><h1>{name}</h1><span>{state}</span></header>
<section class="tiles">{tiles}</section>
<dl class="description">{description}</dl>
{loss}
{spikes}{answers}<section class="charts">{charts}</section>
{against}{planned}<footer>{links}</footer>
"""
