"""The result of a search as an HTML page: step time against memory of every layout that fits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from neoxargs.html_page import html_page
from neoxargs.text import format_bytes, format_duration, format_number
from neoxargs.tools.plan.output.style import PARTS, STYLE
from neoxargs.tools.plan.search.output import counts
from neoxargs.tools.plan.search.search import SLOWEST, Found, Result
from neoxargs.tools.plan.search.subject import Subject

#: In user units of the SVG: size, margins of the axes, radii of points.
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 1060, 460, 80, 48, 24, 24
SMALL, LARGE = 3.5, 6
COLUMNS = ("step", "memory", "TFLOP/s per GPU", "layout")
#: Steps of the ticks of the logarithmic axis within a power of ten, from few to many, and the fewest ticks.
TICKS, FEWEST_TICKS = ((1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)), 3
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
.point {{ fill: var(--soft); opacity: .45; }}
.best {{ fill: {PARTS["weights"]}; }}
.front {{ fill: none; stroke: {PARTS["weights"]}; stroke-width: 2; }}
.grid {{ stroke: var(--line); }}
table {{ border-collapse: collapse; width: 100%; margin-top: 1rem; }}
th, td {{ text-align: left; padding: .35rem .6rem; border-bottom: 1px solid var(--line); }}
td:not(:last-child), th {{ white-space: nowrap; }}
"""


class _Axes:
    """Positions of step times (horizontal, logarithmic) and memory (vertical, from zero)."""

    def __init__(self, fitting: Sequence[Found]) -> None:
        times = [found.seconds for found in fitting]
        self.first, self.last = min(times) * 0.95, max(times) * 1.05
        usable, highest = fitting[0].plan.usable or 0, max(found.memory for found in fitting)
        self.top = max(usable, highest) if highest >= LOW * usable else highest
        self.most = self.top * 1.02

    def x(self, seconds: float) -> float:
        share = math.log(seconds / self.first) / math.log(self.last / self.first)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, memory: float) -> float:
        return HEIGHT - BOTTOM - memory / self.most * (HEIGHT - BOTTOM - TOP)


def _chart(result: Result) -> str:
    axes, front = _Axes(result.fitting), result.front
    line = " ".join(f"{axes.x(found.seconds):.1f},{axes.y(found.memory):.1f}" for found in front)
    points = [_point(found, axes, "point", SMALL) for found in result.fitting]
    best = [_point(found, axes, "best", LARGE) for found in front]
    drawn = "".join([*_grid(axes, front[0].plan.usable), *points, f'<polyline class="front" points="{line}"/>', *best])
    return f'<div class="wide"><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{drawn}</svg></div>'


def _point(found: Found, axes: _Axes, kind: str, radius: float) -> str:
    title = f"{found.layout}: {format_duration(found.seconds)}, {format_bytes(found.memory)}"
    at = f'cx="{axes.x(found.seconds):.1f}" cy="{axes.y(found.memory):.1f}"'
    return f'<circle class="{kind}" {at} r="{radius}"><title>{escape(title)}</title></circle>'


def _grid(axes: _Axes, usable: int | None) -> Iterator[str]:
    for seconds in _ticks(axes.first, axes.last):
        x = axes.x(seconds)
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        yield f'<text class="soft" x="{x:.1f}" y="{HEIGHT - 26}" text-anchor="middle">{format_duration(seconds)}</text>'
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        memory = share * axes.top
        y = axes.y(memory)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="soft" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{format_bytes(memory)}</text>'
    yield f'<text class="soft" x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">time of a training step</text>'
    yield f'<text class="soft" x="0" y="14">peak memory per GPU ({format_bytes(usable or axes.top)} is usable)</text>'


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
