"""Points over a logarithmic axis, as SVG that stretches with the page, while texts and points keep their size.

Horizontal positions are shares of the width; vertical ones, and the margins, are pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from itertools import pairwise

from neoxargs.base.charts.scale import logarithmic_ticks
from neoxargs.base.record import Record

HEIGHT, BOTTOM, TOP, LEFT = 460, 48, 24, 76


class Marker(Record):
    """How points of one kind look. shape: an SVG path around (0, 0). colour: visible on light and dark backgrounds."""

    name: str
    shape: str
    colour: str


class Point(Record):
    """A point. marker: the key of its marker. on_line: whether it is one of the points that a line connects."""

    x: float
    y: float
    marker: str
    title: str
    on_line: bool


class PointChart(Record):
    """A chart. points: those on the line from left to right.

    titles, formats: of the horizontal and the vertical axis. ends: of the horizontal axis. top: the highest number of
    the vertical one, which begins at 0.
    """

    label: str
    titles: tuple[str, str]
    points: Sequence[Point]
    markers: Mapping[str, Marker]
    ends: tuple[float, float]
    top: float
    formats: tuple[Callable[[float], str], Callable[[float], str]]

    def x(self, value: float) -> str:
        first, last = self.ends
        return f"{100 * math.log(value / first) / math.log(last / first):.2f}%"

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - value / (self.top * 1.02) * (HEIGHT - BOTTOM - TOP)

    def draw(self) -> str:
        """Return the chart as an `<svg>` element."""
        shapes = "".join(f'<path id="{key}" d="{marker.shape}"/>' for key, marker in self.markers.items())
        connected = [point for point in self.points if point.on_line]
        lines = "".join(self._line(a, b) for a, b in pairwise(connected))
        points = "".join(self._point(point) for point in self.points if not point.on_line)
        drawn = f"<defs>{shapes}</defs>{''.join(self._axes())}{points}{lines}{''.join(map(self._point, connected))}"
        return f'<svg class="chart" role="img" aria-label="{escape(self.label)}">{drawn}</svg>'

    def legend(self, note: str) -> str:
        """Return colour and shape of each marker that is in the chart, and a note."""
        keys = "".join(
            f'<span><svg class="{key}"><use href="#{key}" x="7" y="7"/></svg>{marker.name}</span>'
            for key, marker in self.markers.items()
            if any(point.marker == key for point in self.points)
        )
        return f'<div class="legend">{keys}<span>{note}</span></div>'

    def _line(self, a: Point, b: Point) -> str:
        ends = f'x1="{self.x(a.x)}" x2="{self.x(b.x)}" y1="{self.y(a.y):.1f}" y2="{self.y(b.y):.1f}"'
        return f'<line class="front" {ends}/>'

    def _point(self, point: Point) -> str:
        look = f"{'best' if point.on_line else 'point'} {point.marker}"
        at = f'x="{self.x(point.x)}" y="{self.y(point.y):.1f}"'
        return f'<use class="{look}" href="#{point.marker}" {at}><title>{escape(point.title)}</title></use>'

    def _axes(self) -> Iterator[str]:
        for value in logarithmic_ticks(*self.ends):
            x = self.x(value)
            yield f'<line class="grid" x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
            yield f'<text x="{x}" y="{HEIGHT - 26}" text-anchor="middle">{self.formats[0](value)}</text>'
        for share in (0.0, 0.25, 0.5, 0.75, 1.0):
            y = self.y(share * self.top)
            yield f'<line class="grid" x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>'
            yield f'<text x="-8" y="{y + 4:.1f}" text-anchor="end">{self.formats[1](share * self.top)}</text>'
        yield f'<text x="100%" y="{HEIGHT - 6}" text-anchor="end">{self.titles[0]}</text>'
        yield f'<text x="{-LEFT}" y="12">{self.titles[1]}</text>'


def style(markers: Mapping[str, Marker]) -> str:
    """Return the CSS of a chart with these markers."""
    return f"""
.chart {{ height: {HEIGHT}px; margin-left: {LEFT}px; overflow: visible; width: calc(100% - {LEFT + 6}px) }}
.chart use {{ fill: none; stroke-width: 1.3 }} .legend use {{ fill: currentColor }}
.chart .best {{ fill: currentColor; stroke-width: 3.5 }}
.legend svg {{ display: inline-block; height: 14px; margin-right: 6px; vertical-align: -2px; width: 14px }}
{" ".join(f".{key} {{ color: {each.colour}; stroke: {each.colour} }}" for key, each in markers.items())}
.front {{ stroke: var(--soft); stroke-width: 1.5; }}
.grid {{ stroke: var(--line); }}
"""
