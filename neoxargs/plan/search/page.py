"""The result of a search as an HTML page: step time against memory of every layout that fits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise

from neoxargs.base.charts.html_page import html_page
from neoxargs.base.text import format_bytes, format_duration, format_number
from neoxargs.plan.output.style import STYLE
from neoxargs.plan.search.output import counts
from neoxargs.plan.search.search import SLOWEST, Found, Result
from neoxargs.plan.search.subject import Subject

#: In pixels: height of the chart, and margins of the axes. Horizontal positions are shares of the page's width.
HEIGHT, BOTTOM, TOP, LEFT = 460, 48, 24, 76
#: For each stage of ZeRO: the shape of its points around (0, 0), and a colour visible on light and dark backgrounds.
ZERO = (
    ("M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z", "#4e79d8"),
    ("M-3.5 -3.5h7v7h-7z", "#c2611c"),
    ("M0 -4.5l4.5 8h-9z", "#2b9360"),
    ("M0 -5l4.5 5l-4.5 5l-4.5 -5z", "#b3599a"),
)
COLUMNS = ("step", "memory", "TFLOP/s per GPU", "layout")
#: Steps of the ticks of the logarithmic axis within a power of ten, from few to many, and the fewest ticks.
TICKS, FEWEST_TICKS = ((1, 2, 5), (1, 2, 3, 5), (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)), 3
#: The vertical axis ends at the usable memory, or at the highest point if that is below this share of it.
LOW = 0.25


def to_html(result: Result, subject: Subject) -> str:
    """Return the whole document."""
    title = f"Layouts for {result.devices:,} x {subject.target.device.name}"
    host = [subject.assumed_host_memory] if result.offloaded and subject.assumed_host_memory else []
    about = "; ".join([subject.batch, *subject.assumed, *host, counts(result)])
    chart = _chart(result) + _table(result.front) if result.fitting else "<p>No layout fits.</p>"
    content = f"""
<main>
<header>
<p class="files">{escape(", ".join(subject.files))}</p>
<h1>{title}</h1>
<p>{escape(about)}</p>
<p>Step times are estimates with an error of about 25 %. The line connects the layouts for which no other layout is
faster and also needs less memory. Layouts that save almost no memory, or take more than {SLOWEST} times as long as the
fastest layout, are not on the line.</p>
</header>
<section><h2>Step time and memory</h2>{chart}</section>
</main>
"""
    return html_page(title, STYLE + OWN_STYLE, content)


OWN_STYLE = f"""
.chart {{ height: {HEIGHT}px; margin-left: {LEFT}px; overflow: visible; width: calc(100% - {LEFT + 6}px) }}
.chart use {{ fill: none; stroke-width: 1.3 }} .legend use {{ fill: currentColor }}
.chart .best {{ fill: currentColor; stroke-width: 3.5 }}
.legend svg {{ display: inline-block; height: 14px; margin-right: 6px; vertical-align: -2px; width: 14px }}
{" ".join(f".zero{stage} {{ color: {colour}; stroke: {colour} }}" for stage, (_, colour) in enumerate(ZERO))}
.front {{ stroke: var(--soft); stroke-width: 1.5; }}
.grid {{ stroke: var(--line); }}
table {{ border-collapse: collapse; width: 100%; margin-top: 1rem; }}
th, td {{ text-align: left; padding: .35rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top }}
td:not(:last-child) {{ white-space: nowrap; }}
@media (max-width: 600px) {{ table {{ font-size: 13px }} th, td {{ padding: .35rem .3rem }} }}
"""


class _Axes:
    """Positions of step times (horizontal, logarithmic, in percent) and memory (vertical, from zero, in pixels)."""

    def __init__(self, fitting: Sequence[Found]) -> None:
        times = [found.seconds for found in fitting]
        self.first, self.last = min(times) * 0.95, max(times) * 1.05
        usable, highest = fitting[0].plan.usable or 0, max(found.memory for found in fitting)
        self.top = max(usable, highest) if highest >= LOW * usable else highest
        self.most = self.top * 1.02

    def x(self, seconds: float) -> float:
        share = math.log(seconds / self.first) / math.log(self.last / self.first)
        return 100 * share

    def y(self, memory: float) -> float:
        return HEIGHT - BOTTOM - memory / self.most * (HEIGHT - BOTTOM - TOP)


def _chart(result: Result) -> str:
    axes, front = _Axes(result.fitting), result.front
    shapes = "".join(f'<path id="zero{stage}" d="{shape}"/>' for stage, (shape, _) in enumerate(ZERO))
    lines = "".join(_line(axes, a, b) for a, b in pairwise(front))
    points = [_point(found, axes, "point") for found in result.fitting if found not in front]
    best = [_point(found, axes, "best") for found in front]
    drawn = "".join([f"<defs>{shapes}</defs>", *_grid(axes, front[0].plan.usable), *points, lines, *best])
    return f'<svg class="chart" role="img" aria-label="step time and memory">{drawn}</svg>{_legend(result)}'


def _line(axes: _Axes, a: Found, b: Found) -> str:
    ends = f'x1="{axes.x(a.seconds):.2f}%" x2="{axes.x(b.seconds):.2f}%" y1="{axes.y(a.memory):.1f}"'
    return f'<line class="front" {ends} y2="{axes.y(b.memory):.1f}"/>'


def _point(found: Found, axes: _Axes, kind: str) -> str:
    title = f"{found.layout}: {format_duration(found.seconds)}, {format_bytes(found.memory)}"
    zero = f"zero{found.layout.division.zero}"
    at = f'x="{axes.x(found.seconds):.2f}%" y="{axes.y(found.memory):.1f}"'
    return f'<use class="{kind} {zero}" href="#{zero}" {at}><title>{escape(title)}</title></use>'


def _legend(result: Result) -> str:
    """Colour and shape of each stage of ZeRO that is in the chart."""
    keys = "".join(
        f'<span><svg class="zero{stage}"><use href="#zero{stage}" x="7" y="7"/></svg>ZeRO-{stage}</span>'
        for stage in sorted({found.layout.division.zero for found in result.fitting})
    )
    return f'<div class="legend">{keys}<span>large and filled: on the line</span></div>'


def _grid(axes: _Axes, usable: int | None) -> Iterator[str]:
    for seconds in _ticks(axes.first, axes.last):
        x = axes.x(seconds)
        yield f'<line class="grid" x1="{x:.2f}%" x2="{x:.2f}%" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        yield f'<text x="{x:.2f}%" y="{HEIGHT - 26}" text-anchor="middle">{format_duration(seconds)}</text>'
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        memory = share * axes.top
        y = axes.y(memory)
        yield f'<line class="grid" x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="-8" y="{y + 4:.1f}" text-anchor="end">{format_bytes(memory)}</text>'
    yield f'<text x="100%" y="{HEIGHT - 6}" text-anchor="end">time of a training step</text>'
    yield f'<text x="{-LEFT}" y="12">peak memory per GPU ({format_bytes(usable or axes.top)} is usable)</text>'


def _ticks(first: float, last: float) -> list[float]:
    """Return at least FEWEST_TICKS numbers within the limits: round ones if there are enough."""
    for steps in TICKS:
        exponents = range(math.floor(math.log10(first)), math.ceil(math.log10(last)) + 1)
        ticks = [step * 10.0**exponent for exponent in exponents for step in steps]
        within = [tick for tick in ticks if first <= tick <= last]
        if len(within) >= FEWEST_TICKS:
            return within
    return [first * (last / first) ** (part / (FEWEST_TICKS + 1)) for part in range(1, FEWEST_TICKS + 1)]


def _table(front: Sequence[Found]) -> str:
    offloaded = any(found.layout.division.offload for found in front)
    columns = [*COLUMNS[:2], *(["memory of a host"] if offloaded else []), *COLUMNS[2:]]
    head = "".join(f"<th>{name}</th>" for name in columns)
    cells = (_cells(found, offloaded) for found in front)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in cells)
    return f"<table><tr>{head}</tr>{rows}</table>"


def _cells(found: Found, with_host: bool) -> tuple[str, ...]:
    rate = format_number(found.plan.speed.tflops_per_device)
    host = [format_bytes(found.plan.host_peak)] if with_host else []
    return format_duration(found.seconds), format_bytes(found.memory), *host, rate, str(found.layout)
