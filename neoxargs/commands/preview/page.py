"""The forecast of a run as one HTML page with charts, without scripts or network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from neoxargs.base.charts.html_page import html_page
from neoxargs.base.charts.line_chart import STYLE
from neoxargs.base.problems import render
from neoxargs.base.text import format_bytes, format_count, format_duration, format_number
from neoxargs.commands.preview import text
from neoxargs.commands.preview.forecast import Forecast
from neoxargs.facts import timeline_page
from neoxargs.facts.description import batch_equation
from neoxargs.plan.output.wording import ranged, verdict


def to_html(forecast: Forecast, files: Sequence[str]) -> str:
    """Return the whole document. files: the configuration files, which its header names."""
    rows = {
        "run": [text.run(forecast)],
        "time": [text.time(forecast)] if forecast.timeline.left else [],
        "memory": [verdict(forecast.plan)],
        "batch": [batch_equation(forecast.config)],
        "problems": [render([problem]).splitlines()[0] for problem in forecast.problems],
        "continues": list(text.continued(forecast)),
    }
    tiles = "".join(f"<div><b>{escape(value)}</b><span>{escape(what)}</span></div>" for what, value in _tiles(forecast))
    content = f"""
<header><h1>Preview</h1><span>{escape(", ".join(files))}</span></header>
<section class="tiles">{tiles}</section>
{timeline_page.description(rows)}{timeline_page.section(forecast.timeline)}
"""
    return html_page("Preview", STYLE + timeline_page.STYLE, content)


def _tiles(forecast: Forecast) -> Iterator[tuple[str, str]]:
    timeline = forecast.timeline
    yield "iterations", f"{timeline.left:,}"
    yield "tokens", format_count(timeline.tokens_left)
    if timeline.left:
        devices = f"{forecast.plan.layout.ranks} x {forecast.plan.target.device.name}"
        time, _, interval = ranged(forecast.seconds, forecast.plan.time_error, format_duration).partition(" (")
        yield f"planned ({interval} on {devices}", time
    if forecast.cost is not None:
        cost = ranged(forecast.cost, forecast.plan.time_error, format_number)
        yield f"cost at {forecast.plan.target.price:g} per device and hour", cost
    epochs = [each.epochs for each in timeline.drawn if each.epochs is not None]
    if epochs:
        yield "epochs" if len(epochs) == 1 else "epochs of the most repeated source", f"{max(epochs):,.3g}"
    if timeline.disk_bytes:
        yield "disk for checkpoints", format_bytes(timeline.disk_bytes)
