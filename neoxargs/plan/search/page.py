"""The result of a search as an HTML page: step time against memory of every layout that fits."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from neoxargs.base.charts.html_page import html_page
from neoxargs.base.charts.points import Marker, Point, PointChart, style
from neoxargs.base.text import format_bytes, format_duration, format_number
from neoxargs.plan.output.style import STYLE
from neoxargs.plan.search.output import counts, indistinct
from neoxargs.plan.search.search import SLOWEST, Found, Result
from neoxargs.plan.search.subject import Subject

#: For each stage of ZeRO: how its points look.
MARKERS = {
    "zero0": Marker("ZeRO-0", "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z", "#4e79d8"),
    "zero1": Marker("ZeRO-1", "M-3.5 -3.5h7v7h-7z", "#c2611c"),
    "zero2": Marker("ZeRO-2", "M0 -4.5l4.5 8h-9z", "#2b9360"),
    "zero3": Marker("ZeRO-3", "M0 -5l4.5 5l-4.5 5l-4.5 -5z", "#b3599a"),
}
COLUMNS = ("step", "memory", "TFLOP/s per GPU", "layout")
#: The vertical axis ends at the usable memory, or at the highest point if that is below this share of it.
LOW = 0.25


def to_html(result: Result, subject: Subject) -> str:
    """Return the whole document."""
    title = f"Layouts for {result.devices:,} x {subject.target.device.name}"
    host = [subject.assumed_host_memory] if result.offloaded and subject.assumed_host_memory else []
    about = "; ".join([subject.batch, *subject.assumed, *host, counts(result)])
    chart = _chart(result) + _table(result.front) if result.fitting else "<p>No layout fits.</p>"
    alike = escape(f"In the table, {indistinct(result)}.") if result.fitting else ""
    content = f"""
<main>
<header>
<p class="files">{escape(", ".join(subject.files))}</p>
<h1>{title}</h1>
<p>{escape(about)}</p>
<p>{alike} The line connects the layouts for which no other layout is faster and also needs less memory. Layouts
that save almost no memory, or take more than {SLOWEST} times as long as the
fastest layout, are not on the line.</p>
</header>
<section><h2>Step time and memory</h2>{chart}</section>
</main>
"""
    return html_page(title, STYLE + style(MARKERS) + TABLE, content)


TABLE = """
table { border-collapse: collapse; width: 100%; margin-top: 1rem; }
th, td { text-align: left; padding: .35rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top }
td:not(:last-child) { white-space: nowrap; }
@media (max-width: 600px) { table { font-size: 13px } th, td { padding: .35rem .3rem } }
"""


def _chart(result: Result) -> str:
    usable, highest = result.fitting[0].plan.usable or 0, max(found.memory for found in result.fitting)
    top = max(usable, highest) if highest >= LOW * usable else highest
    titles = "time of a training step", f"peak memory per GPU ({format_bytes(usable or top)} is usable)"
    points = [_point(found, False) for found in result.fitting if found not in result.front]
    points += [_point(found, True) for found in result.front]
    times, formats = [found.seconds for found in result.fitting], (format_duration, format_bytes)
    ends = min(times) * 0.95, max(times) * 1.05
    chart = PointChart("step time and memory", titles, points, MARKERS, ends, top, formats)
    return chart.draw() + chart.legend("large and filled: on the line")


def _point(found: Found, on_line: bool) -> Point:
    title = f"{found.layout}: {format_duration(found.seconds)}, {format_bytes(found.memory)}"
    return Point(found.seconds, found.memory, f"zero{found.layout.division.zero}", title, on_line)


def _table(front: Sequence[Found]) -> str:
    offloaded = any(found.layout.division.offload for found in front)
    priced = ["cost"] if front[0].cost is not None else []
    columns = [*COLUMNS[:2], *(["memory of a host"] if offloaded else []), COLUMNS[2], *priced, *COLUMNS[3:]]
    head = "".join(f"<th>{name}</th>" for name in columns)
    cells = (_cells(found, offloaded) for found in front)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in cells)
    return f"<table><tr>{head}</tr>{rows}</table>"


def _cells(found: Found, with_host: bool) -> tuple[str, ...]:
    rate = format_number(found.plan.speed.tflops_per_device)
    host = [format_bytes(found.plan.host_peak)] if with_host else []
    cost = [] if found.cost is None else [format_number(found.cost)]
    return format_duration(found.seconds), format_bytes(found.memory), *host, rate, *cost, str(found.layout)
