"""Line charts as SVG text, small however long the run: many steps become one point with a band from least to most.

Colours are CSS variables of the page around them, so that one drawing serves light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

Point = tuple[float, float]
#: Points of a line, at most; more cannot be told apart on a screen.
FINEST = 300
#: Pixels around the plot: left for the numbers, above for title and unit, below for iterations.
LEFT, RIGHT, ABOVE, BELOW = 64, 26, 46, 34


@dataclass(frozen=True)
class Series:
    """One curve. `dots` marks each point, for values that are few; `mean` is drawn over points that wander."""

    name: str
    colour: str
    points: Sequence[Point]
    dots: bool = False
    mean: Sequence[Point] = ()


@dataclass(frozen=True)
class Chart:
    """What is drawn, and over what. The vertical axis begins at 0 unless `floats`."""

    title: str
    unit: str
    series: Sequence[Series]
    floats: bool = False
    level: tuple[str, float] | None = None
    """A horizontal line to compare with, and its name."""


def draw(chart: Chart, width: int = 560, height: int = 250) -> str:
    """The chart as an `<svg>` element."""
    thinned = [(series, thin(series.points)) for series in chart.series if series.points]
    bins = [bin for _, found in thinned for bin in found]
    shown = [*_without_outliers(bins), *([chart.level[1]] if chart.level else [])]
    factor, unit = scaled(chart.unit, max(shown))
    ends = (min(shown) if chart.floats else min(0.0, *shown)) * factor, max(shown) * factor
    plane = Plane.around([bin.x for bin in bins], ends, chart.floats, factor, width, height)
    curves = "".join(_curve(plane, series, bins) for series, bins in thinned)
    level = _level(plane, chart.level[1]) if chart.level else ""
    drawn = _axes(plane, unit) + level + _clipped(plane, curves)
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(chart.title)}">'
        f'<text class="title" x="{LEFT}" y="18">{escape(chart.title)}</text>{drawn}{_legend(chart, width)}</svg>'
    )


@dataclass(frozen=True)
class Bin:
    """Neighbouring steps as one: where, and the mean, least and most of their values."""

    x: float
    mean: float
    low: float
    high: float


def thin(points: Sequence[Point], finest: int = FINEST) -> list[Bin]:
    """At most `finest` bins; the first and the last step are the ends of the first and the last bin."""
    size = max(1, math.ceil(len(points) / finest))
    found = []
    for start in range(0, len(points), size):
        xs, ys = zip(*points[start : start + size], strict=True)
        x = xs[0] if start == 0 else xs[-1] if start + size >= len(points) else sum(xs) / len(xs)
        found.append(Bin(x, sum(ys) / len(ys), min(ys), max(ys)))
    return found


def centred(points: Sequence[Point], parts: int = 60) -> list[Point]:
    """Each value's mean with as many neighbours on either side, over about a `parts`-th of the run."""
    sums, reach = [0.0], len(points) // (2 * parts)
    for _, y in points:
        sums.append(sums[-1] + y)
    found = []
    for index, (x, _) in enumerate(points):
        near = min(reach, index, len(points) - 1 - index)
        found.append((x, (sums[index + near + 1] - sums[index - near]) / (2 * near + 1)))
    return found


def ticks(low: float, high: float, count: int) -> list[float]:
    """Round numbers (1, 2, 2.5 or 5 times a power of ten apart) from within [low, high], about `count` of them."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def scaled(unit: str, most: float) -> tuple[float, str]:
    """A factor that makes the axis' numbers short, and the unit that goes with it. most: the largest shown."""
    if unit == "bytes":
        name, size = next(((n, s) for n, s in (("GiB", 2.0**30), ("MiB", 2.0**20)) if most >= s), ("KiB", 1024.0))
        return 1 / size, name
    exponent = math.floor(math.log10(most)) if most > 0 else 0
    if exponent >= 4:
        thousands = exponent // 3
        return 10.0 ** (-3 * thousands), f"{('', 'thousand', 'million', 'billion')[min(thousands, 3)]} {unit}"
    if exponent <= -2:
        return 10.0**-exponent, f"\N{MULTIPLICATION SIGN} 10{str(exponent).translate(RAISED)} {unit}".strip()
    return 1.0, unit


RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Plane:
    """From values to pixels."""

    x0: float
    x1: float
    y0: float
    y1: float
    factor: float
    width: int
    height: int

    @classmethod
    def around(
        cls, xs: Sequence[float], ends: tuple[float, float], floats: bool, factor: float, width: int, height: int
    ) -> Plane:
        """With some room above, and below if the axis `floats`."""
        low, high = ends
        room = (high - low or abs(high) or 1.0) * 0.06
        low = low - room if floats else low
        return cls(min(xs), max(max(xs), min(xs) + 1), low, high + room, factor, width, height)

    def x(self, value: float) -> str:
        return f"{LEFT + (value - self.x0) / (self.x1 - self.x0) * (self.width - LEFT - RIGHT):.1f}"

    def y(self, value: float) -> str:
        share = (value * self.factor - self.y0) / (self.y1 - self.y0)
        return f"{self.height - BELOW - share * (self.height - ABOVE - BELOW):.1f}"


def _without_outliers(bins: Sequence[Bin]) -> list[float]:
    """A first step that takes minutes, or one gradient that explodes, would flatten the rest; it leaves the plot."""
    highs = sorted(bin.high for bin in bins)
    typical = highs[math.ceil(0.97 * (len(highs) - 1))]  # of few points the largest
    most = highs[-1] if highs[-1] <= 3 * abs(typical) else typical
    return [min(value, most) for bin in bins for value in (bin.low, bin.high)]


def _axes(plane: Plane, unit: str) -> str:
    parts = [f'<text class="unit" x="{LEFT}" y="34">{escape(unit)}</text>'] if unit else []
    marks = ticks(plane.y0, plane.y1, 4)
    for value, label in zip(marks, labels(marks), strict=True):
        y = plane.y(value / plane.factor)
        parts.append(f'<path class="grid" d="M{LEFT} {y}H{plane.width - RIGHT}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y}" dy="4" text-anchor="end">{label}</text>')
    marks = [mark for mark in ticks(plane.x0, plane.x1, 6) if mark == int(mark)]
    below = plane.height - BELOW + 18
    for value, label in zip(marks, labels(marks), strict=True):
        parts.append(f'<text class="tick" x="{plane.x(value)}" y="{below}" text-anchor="middle">{label}</text>')
    parts.append(f'<text class="tick" x="{LEFT - 8}" y="{below}" text-anchor="end">iteration</text>')
    parts.append(f'<path class="axis" d="M{LEFT} {plane.height - BELOW}H{plane.width - RIGHT}"/>')
    return "".join(parts)


def labels(values: Sequence[float]) -> list[str]:
    """The numbers of an axis, with as many decimals as tell them apart."""
    step = min((b - a for a, b in pairwise(values)), default=1.0)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    decimals += abs(round(step, decimals) - step) > step / 100  # steps of 2.5
    return [f"{value:,.{decimals}f}" for value in values]


def _curve(plane: Plane, series: Series, bins: Sequence[Bin]) -> str:
    line = _line(plane, bins)
    colour = f"var(--{series.colour})"
    if series.dots:
        dots = "".join(
            f'<circle cx="{plane.x(bin.x)}" cy="{plane.y(bin.mean)}" r="{3 if len(bins) < 60 else 1.5}">'
            f"<title>{escape(series.name)} after iteration {bin.x:.0f}: {bin.mean:.4g}</title></circle>"
            for bin in bins
        )
        return f'<g fill="{colour}"><polyline class="line" stroke="{colour}" points="{line}"/>{dots}</g>'
    back = [f"{plane.x(bin.x)},{plane.y(bin.low)}" for bin in reversed(bins)]
    there = [f"{plane.x(bin.x)},{plane.y(bin.high)}" for bin in bins]
    wide = any(bin.low != bin.high for bin in bins)
    band = f'<polygon class="band" fill="{colour}" points="{" ".join(there + back)}"/>' if wide else ""
    faint = f'<polyline class="line faint" stroke="{colour}" points="{line}"/>' if series.mean and not wide else ""
    bold = _line(plane, thin(series.mean)) if series.mean else line
    return f'{band}{faint}<polyline class="line" stroke="{colour}" points="{bold}"/>'


def _clipped(plane: Plane, curves: str, room: int = 5) -> str:
    """Within the plot, and the dots at its border."""
    x, y = LEFT - room, ABOVE - room
    width, height = plane.width - LEFT - RIGHT + 2 * room, plane.height - ABOVE - BELOW + 2 * room
    place = f'x="{x}" y="{y}" width="{width}" height="{height}"'
    return f'<svg class="plot" {place} viewBox="{x} {y} {width} {height}">{curves}</svg>'


def _line(plane: Plane, bins: Sequence[Bin]) -> str:
    return " ".join(f"{plane.x(bin.x)},{plane.y(bin.mean)}" for bin in bins)


def _level(plane: Plane, value: float) -> str:
    return f'<path class="level" d="M{LEFT} {plane.y(value)}H{plane.width - RIGHT}"/>'


def _legend(chart: Chart, width: int) -> str:
    """Names above the plot, from the right; none for a single curve, which the title names."""
    names = [(series.name, f"var(--{series.colour})") for series in chart.series if series.points]
    names += [(chart.level[0], "var(--soft)")] if chart.level else []
    if len(names) < 2:
        return ""
    parts, x = [], float(width - RIGHT)
    for name, colour in reversed(names):
        x -= 6.6 * len(name)
        parts.append(f'<text class="key" x="{x:.0f}" y="18">{escape(name)}</text>')
        parts.append(f'<path d="M{x - 20:.0f} 14h14" stroke="{colour}" stroke-width="3" stroke-linecap="round"/>')
        x -= 36
    return "".join(parts)
