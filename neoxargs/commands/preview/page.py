"""The forecast of a run as one HTML page with charts, without scripts or network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from neoxargs.base.charts.html_page import html_page
from neoxargs.base.charts.line_chart import PHONE, STYLE, Chart, Series, draw, figure
from neoxargs.base.problems import render
from neoxargs.base.text import format_bytes, format_count, format_duration, format_number, format_percent
from neoxargs.commands.preview import text
from neoxargs.commands.preview.forecast import Forecast
from neoxargs.plan.output.wording import verdict

#: Colours of the curves of sources, legible on a light and a dark ground.
SOURCE_COLOURS = ("#2563eb", "#d97706", "#0f9d58", "#a855f7", "#e2605f", "#0ea5b7", "#c9a227", "#9a9aa6")


def to_html(forecast: Forecast, files: Sequence[str]) -> str:
    """Return the whole document. files: the configuration files, which its header names."""
    rows = {
        "run": [text.run(forecast)],
        "time": [text.time(forecast)] if forecast.left else [],
        "memory": [verdict(forecast.plan)],
        "warnings": [render([problem]).splitlines()[0] for problem in forecast.problems],
        "learning rate": [text.learning_rate(forecast)],
        "evaluation": [text.evaluation(forecast)],
        "checkpoints": [text.saves(forecast)],
        "continues": list(text.continued(forecast)),
    }
    description = "".join(
        f"<dt>{label}</dt><dd>{'<br>'.join(map(escape, lines))}</dd>" for label, lines in rows.items() if lines
    )
    tiles = "".join(f"<div><b>{escape(value)}</b><span>{escape(what)}</span></div>" for what, value in _tiles(forecast))
    first, *others = _charts(forecast)
    content = f"""
<header><h1>Preview</h1><span>{escape(", ".join(files))}</span></header>
<section class="tiles">{tiles}</section>
<dl class="description">{description}</dl>
{figure(first)}
<section class="charts">{"".join(f"<figure>{draw(chart, PHONE)}</figure>" for chart in others)}</section>
{_sources(forecast)}
"""
    return html_page("Preview", STYLE + TABLE + _colours(), content)


def _tiles(forecast: Forecast) -> Iterator[tuple[str, str]]:
    yield "iterations", f"{forecast.left:,}"
    yield "tokens", format_count(forecast.left * forecast.tokens_per_iteration)
    devices = f"{forecast.plan.layout.ranks} x {forecast.plan.target.device.name}"
    yield f"planned, on {devices}", format_duration(forecast.seconds)
    if forecast.cost is not None:
        yield "cost", format_number(forecast.cost)
    epochs = [each.epochs for each in forecast.drawn if each.epochs is not None]
    if epochs:
        yield "epochs" if len(epochs) == 1 else "epochs of the most repeated source", f"{max(epochs):,.3g}"
    if forecast.disk_bytes:
        yield "disk for checkpoints", format_bytes(forecast.disk_bytes)


def _charts(forecast: Forecast) -> Iterator[Chart]:
    steps = (float(min(forecast.start + 1, forecast.iterations)), float(forecast.iterations))
    rates = [(float(iteration), rate) for iteration, rate in forecast.learning_rate]
    yield Chart("Learning rate", "", [Series("learning rate", "train", rates)], steps=steps)
    epochs = [
        Series(each.source.prefix, f"source{number}", [(0.0, 0.0), (steps[1], each.epochs)])
        for number, each in enumerate(forecast.drawn[: len(SOURCE_COLOURS)])
        if each.epochs is not None
    ]
    if epochs:
        highest = max(point[1] for each in epochs for point in each.points)
        level = ("one epoch", 1.0) if highest > 1 else None
        yield Chart("Passes over each source", "epochs", epochs, level=level, steps=steps)
    line = [(0.0, 0.0), (steps[1], float(forecast.iterations * forecast.tokens_per_iteration))]
    done = ("done already", float(forecast.start * forecast.tokens_per_iteration)) if forecast.start else None
    yield Chart("Tokens", "", [Series("tokens", "train", line)], level=done, steps=steps)
    if forecast.disk_bytes:
        disk = [(float(iteration), size) for iteration, size in forecast.disk]
        most = ("at most, while one is written", float(forecast.disk_bytes))
        yield Chart(
            "Checkpoints on disk", "bytes", [Series("checkpoints", "validation", disk)], level=most, steps=steps
        )


def _sources(forecast: Forecast) -> str:
    if not forecast.drawn:
        return ""
    total = sum(each.tokens for each in forecast.drawn) or 1
    rows = "".join(
        f"<tr><td>{escape(each.source.prefix)}</td>"
        + "".join(
            f"<td>{escape(cell)}</td>"
            for cell in (format_percent(each.tokens, total), format_count(each.tokens), *text.columns(each, forecast))
        )
        + "</tr>"
        for each in forecast.drawn
    )
    names = ("source", "share", "tokens read", "one pass", "epochs", "first repeated")
    head = "".join(f"<th>{name}</th>" for name in names)
    return f'<div class="table"><table><tr>{head}</tr>{rows}</table></div>'


def _colours() -> str:
    names = "; ".join(f"--source{number}: {colour}" for number, colour in enumerate(SOURCE_COLOURS))
    return f":root {{ {names} }}"


TABLE = """
.table { background: var(--card); border: 1px solid var(--line); border-radius: 10px; margin-top: 12px;
  overflow-x: auto; padding: 8px 18px 12px; }
table { border-collapse: collapse; width: 100%; } th { color: var(--soft); font-weight: 400; }
th, td { padding: 4px 12px 4px 0; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
"""
