"""report.html in `run_dir`: a summary of the run on one page, without scripts or network, in light and dark mode."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from neoxargs.train.track.chart import Chart, Point, Series, centred, draw
from neoxargs.train.track.console import duration, ending
from neoxargs.train.track.metrics import FILE, read
from neoxargs.train.track.tracker import Outcome, Run, Tracker

REPORT = "report.html"
Rows = Sequence[Mapping[str, Any]]
#: Column of metrics.jsonl -> title and unit of its chart. A column without values is not drawn.
CHARTS = {
    "lr": ("Learning rate", ""),
    "grad_norm": ("Gradient norm", "before clipping"),
    "tokens_per_second": ("Throughput", "tokens/s"),
    "memory": ("Peak memory on rank 0", "bytes"),
}
#: Files of `run_dir` that the page links to, if they exist.
FILES = {"config.json": "configuration", FILE: "metrics", "loss.png": "loss curve", "profile.txt": "profile"}


class Page(Tracker):
    """Writes the page at every checkpoint, so that a killed run has one too, and at the end.

    description: label and text of each line of the summary at the top of the page.
    """

    def __init__(self, description: Sequence[tuple[str, str]]) -> None:
        self.description = description

    def on_start(self, run: Run) -> None:
        self.run = run

    def on_save(self, iteration: int, folder: Path) -> None:
        self._write(f"iteration {iteration} of {self.run.iterations}")

    def on_end(self, outcome: Outcome) -> None:
        state = ending(outcome)
        self._write(f"{outcome.iteration} iterations done" if state == "done" else state)

    def _write(self, state: str) -> None:
        folder = self.run.folder
        text = page(list(read(folder / FILE)), state, self.description, folder)
        if text:
            part = folder / f"{REPORT}.part"
            part.write_text(text, encoding="utf-8")
            os.replace(part, folder / REPORT)


def page(rows: Rows, state: str, description: Sequence[tuple[str, str]], folder: Path) -> str:
    """Return the page as HTML; "" if the rows contain no step. state: progress or outcome, shown beside the title."""
    steps = [row for row in rows if row["event"] == "step"]
    if not _points(steps, "loss"):
        return ""
    name = folder.resolve().name
    charts = [draw(_loss(rows, steps), 1140, 340)]
    charts += [
        draw(Chart(title, unit, [Series(title, "train", points)]))
        for column, (title, unit) in CHARTS.items()
        if (points := _points(steps, column))
    ]
    return PAGE.format(
        name=escape(name),
        state=escape(state),
        tiles="".join(f"<div><b>{escape(value)}</b><span>{escape(what)}</span></div>" for what, value in _tiles(rows)),
        description="".join(f"<dt>{escape(label)}</dt><dd>{escape(text)}</dd>" for label, text in description),
        loss=charts[0],
        charts="".join(f"<figure>{chart}</figure>" for chart in charts[1:]),
        links=" · ".join(f'<a href="{file}">{text}</a>' for file, text in FILES.items() if (folder / file).exists()),
        style=STYLE,
    )


def _points(rows: Rows, column: str) -> list[Point]:
    return [(row["step"], row[column]) for row in rows if row.get(column) is not None]


def _loss(rows: Rows, steps: Rows) -> Chart:
    """Return the chart of the training loss with its moving average, the held-out losses and the unigram entropy."""
    losses = _points(steps, "loss")
    series = [Series("training", "train", losses, mean=centred(losses))]
    for split in ("validation", "test"):
        points = [(row["step"], row["loss"]) for row in rows if row.get("split") == split]
        series.append(Series(split, split, points, dots=True))
    entropy = next((row["unigram_entropy"] for row in reversed(rows) if "unigram_entropy" in row), None)
    level = ("unigram entropy", entropy) if entropy is not None else None
    return Chart("Loss", "nats per token", series, floats=True, level=level)


def _tiles(rows: Rows) -> list[tuple[str, str]]:
    """Return label and value of the key figures at the top of the page."""
    steps = [row for row in rows if row["event"] == "step"]
    held_out = [row for row in rows if row.get("split") == "validation"]
    last, tiles = steps[-1], []
    # The mean of the last 2 % of the steps, because the loss of a single step is noisy.
    recent = [row["loss"] for row in steps[-max(1, len(steps) // 50) :] if row["loss"] is not None]
    if recent:
        tiles.append(("training loss", f"{sum(recent) / len(recent):.4f}"))
    if held_out:
        loss = held_out[-1]["loss"]
        tiles += [("validation loss", f"{loss:.4f}"), ("perplexity", f"{math.exp(min(loss, 50)):.4g}")]
    speeds = sorted(row["tokens_per_second"] for row in steps)
    tiles += [
        ("tokens/s, median", f"{speeds[len(speeds) // 2]:,.0f}"),
        ("samples", f"{last['samples']:,}"),
        ("time in steps", duration(last["elapsed"])),
    ]
    return tiles


STYLE = """
:root { color-scheme: light dark; --paper: #f6f7f9; --card: #fff; --ink: #1c2128; --soft: #667080; --line: #e3e6ea;
  --train: #2563eb; --validation: #d97706; --test: #0f9d58; }
@media (prefers-color-scheme: dark) { :root { --paper: #0e1116; --card: #171b22; --ink: #e4e8ee; --soft: #8e99a8;
  --line: #2a303a; --train: #60a5fa; --validation: #fbbf24; --test: #4ade80; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1200px; padding: 28px 20px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "Noto Sans", sans-serif; font-variant-numeric: tabular-nums; }
header { display: flex; flex-wrap: wrap; align-items: baseline; gap: 4px 16px; margin-bottom: 16px; }
h1 { font-size: 24px; margin: 0; } header span { color: var(--soft); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; }
.tiles div, .description, figure { background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
.tiles div { padding: 12px 16px; } .tiles b { display: block; font-size: 21px; font-weight: 600; }
.tiles span { color: var(--soft); font-size: 13px; }
.description { display: grid; grid-template-columns: max-content 1fr; gap: 4px 20px; margin: 12px 0;
  padding: 14px 18px; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(440px, 100%), 1fr)); gap: 12px; }
figure { margin: 0; padding: 12px 8px 4px; } .wide { margin-bottom: 12px; }
figure > svg { display: block; width: 100%; height: auto; }
svg text { font-size: 12px; fill: var(--soft); } svg .title { font-size: 14px; font-weight: 600; fill: var(--ink); }
svg .key { fill: var(--ink); } .grid { stroke: var(--line); } .axis { stroke: var(--soft); stroke-opacity: 0.6; }
.line { fill: none; stroke-width: 1.8; stroke-linejoin: round; } .faint { stroke-opacity: 0.35; }
.band { opacity: 0.22; } .level { stroke: var(--soft); stroke-dasharray: 2 4; }
footer { margin-top: 16px; color: var(--soft); font-size: 14px; } a { color: var(--train); }
"""

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{name}</title>
<style>{style}</style>
<header><h1>{name}</h1><span>{state}</span></header>
<section class="tiles">{tiles}</section>
<dl class="description">{description}</dl>
<figure class="wide">{loss}</figure>
<section class="charts">{charts}</section>
<footer>{links}</footer>
</html>
"""
