"""Line charts as SVG text of bounded size: in a long run, several steps become one point with a band from min to max.

Colours are CSS variables of the surrounding page, so that the same SVG works on a light and a dark background.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape

from neoxargs.base.charts.scale import labels, readable_ticks, scaled, ticks

Point = tuple[float, float]
#: Maximum number of points of a line; more are not distinguishable on a screen.
MAX_POINTS = 300
#: Margins of the plot in pixels: numbers on the left, iterations below. Above it is the header.
LEFT, RIGHT, BELOW = 64, 26, 34
#: Height of a header in pixels; a higher one makes the chart higher.
MOST_ABOVE = 100
#: Width of a chart on a screen and on a phone, in pixels; others would have large or small letters there.
SCREEN, PHONE = 1140, 400
#: Average widths of characters in pixels: of a title, and of smaller text.
LARGE, SMALL = 8.6, 6.6


@dataclass(frozen=True)
class Series:
    """One curve.

    dots: whether to mark each point, for series with few values. joined: whether a line joins the marks. mean: a
    smoothed curve, drawn over noisy points.
    """

    name: str
    colour: str
    points: Sequence[Point]
    dots: bool = False
    joined: bool = True
    mean: Sequence[Point] = ()


@dataclass(frozen=True)
class Chart:
    """A chart of one or several series over iterations."""

    title: str
    unit: str
    series: Sequence[Series]
    floats: bool = False
    """Whether the vertical axis starts near the smallest value instead of at 0."""
    level: tuple[str, float] | None = None
    """Name and value of a horizontal reference line."""
    steps: tuple[float, float] | None = None
    """The first and last iteration of the horizontal axis; None: those of the series."""


def smoothed(name: str, colour: str, points: Sequence[Point]) -> Series:
    """Return a noisy curve with its moving average, which is drawn over it."""
    return Series(name, colour, points, mean=centred(points))


def figure(chart: Chart, height: int = 340) -> str:
    """Return a chart across the page, and below it the one that takes its place on a phone. height: in pixels."""
    phone = draw(chart, PHONE, 300).replace("<svg ", '<svg class="phone" ', 1)
    return f'<figure class="wide">{draw(chart, SCREEN, height)}{phone}</figure>'


def standalone(chart: Chart, width: int = SCREEN, height: int = 480) -> str:
    """Return the chart as an SVG file, in its own colours on a ground of its own. width, height: in pixels."""
    beginning = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
    ground = f"<style>{COLOURS}svg {{ background: var(--card); {FONT} }}{CHART}</style>"
    return draw(chart, width, height).replace("<svg ", beginning, 1).replace(">", f">{ground}", 1)


def draw(chart: Chart, width: int = 560, height: int = 250) -> str:
    """Return the chart as an `<svg>` element, without values that are infinite or NaN. width, height: in pixels."""
    chart = replace(chart, series=[_finite(series) for series in chart.series])
    thinned = [(series, thin(series.points)) for series in chart.series if series.points]
    bins = [bin for _, of_series in thinned for bin in of_series]
    limit = _limit(bins)
    values = [min(y, limit) for bin in bins for y in (bin.low, bin.high)]
    values += [chart.level[1]] if chart.level else []
    values = values or [0.0]
    factor, unit = scaled(chart.unit, max(values))
    ends = (min(values) if chart.floats else min(0.0, *values)) * factor, max(values) * factor
    plane = Plane.around([*(chart.steps or ()), *(bin.x for bin in bins)], ends, chart.floats, factor, width, height)
    header, above = _header(chart, unit, _note(plane, bins), width)
    height += max(0, above - MOST_ABOVE)
    plane = replace(plane, above=above, height=height)
    curves = "".join(_curve(plane, series, bins) for series, bins in thinned)
    across = f'<path class="level" d="M{LEFT} {plane.y(chart.level[1])}H{width - RIGHT}"/>' if chart.level else ""
    drawn = _axes(plane) + across + _clipped(plane, curves) + _beyond(plane, thinned)
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(chart.title)}">{header}{drawn}</svg>'


@dataclass(frozen=True)
class Bin:
    """Adjacent steps as one point: position, and mean, minimum and maximum of their values."""

    x: float
    mean: float
    low: float
    high: float


def thin(points: Sequence[Point], max_bins: int = MAX_POINTS) -> list[Bin]:
    """Group points into at most `max_bins` bins. The first bin lies at the first step, the last bin at the last."""
    size = max(1, math.ceil(len(points) / max_bins))
    bins = []
    for start in range(0, len(points), size):
        xs, ys = zip(*points[start : start + size], strict=True)
        x = xs[0] if start == 0 else xs[-1] if start + size >= len(points) else sum(xs) / len(xs)
        bins.append(Bin(x, sum(ys) / len(ys), min(ys), max(ys)))
    return bins


def centred(points: Sequence[Point], parts: int = 40) -> list[Point]:
    """Return the centred moving average over about 1/`parts` of the run, and three points or more.

    The window is symmetric, and therefore shorter at both ends, so that the average does not lag behind the curve.
    """
    sums, reach = [0.0], max(1, len(points) // (2 * parts))
    for _, y in points:
        sums.append(sums[-1] + y)
    means = []
    for index, (x, _) in enumerate(points):
        near = min(reach, index, len(points) - 1 - index)
        means.append((x, (sums[index + near + 1] - sums[index - near]) / (2 * near + 1)))
    return means


@dataclass(frozen=True)
class Plane:
    """The mapping of values to pixels."""

    x0: float
    x1: float
    y0: float
    y1: float
    factor: float
    width: int
    height: int
    above: int = 0
    """Height of the header."""

    @classmethod
    def around(
        cls, xs: Sequence[float], ends: tuple[float, float], floats: bool, factor: float, width: int, height: int
    ) -> Plane:
        """Return the plane for these positions and ends of the vertical axis, with 6 % room above.

        floats: whether to leave room below too. factor: as returned by `scaled`.
        """
        low, high = ends
        room = (high - low or abs(high) or 1.0) * 0.06
        low = low - room if floats else low
        xs = xs or [0.0]
        return cls(min(xs), max(max(xs), min(xs) + 1), low, high + room, factor, width, height)

    def x(self, value: float) -> str:
        return f"{LEFT + (value - self.x0) / (self.x1 - self.x0) * (self.width - LEFT - RIGHT):.1f}"

    def y(self, value: float) -> str:
        share = (value * self.factor - self.y0) / (self.y1 - self.y0)
        return f"{self.height - BELOW - share * (self.height - self.above - BELOW):.1f}"


def _finite(series: Series) -> Series:
    points, mean = ([(x, y) for x, y in line if math.isfinite(y)] for line in (series.points, series.mean))
    return replace(series, points=points, mean=mean)


def _limit(bins: Sequence[Bin]) -> float:
    """Return the largest value to show without outliers: a slow first step or a peak would flatten all other values.

    Outliers are drawn beyond the plot, where they are clipped; `_beyond` marks them.
    """
    highs = sorted(bin.high for bin in bins) or [0.0]
    typical = highs[math.ceil(0.97 * (len(highs) - 1))]  # with few points, the largest one
    return highs[-1] if highs[-1] <= 3 * abs(typical) else typical


def _axes(plane: Plane) -> str:
    parts = []
    marks = readable_ticks(plane.y0, plane.y1)
    for value, label in zip(marks, labels(marks), strict=True):
        y = plane.y(value / plane.factor)
        parts.append(f'<path class="grid" d="M{LEFT} {y}H{plane.width - RIGHT}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y}" dy="4" text-anchor="end">{label}</text>')
    marks = [mark for mark in ticks(plane.x0, plane.x1, 6) if mark == int(mark)]
    below = plane.height - BELOW + 18
    for value, label in zip(marks, labels(marks), strict=True):
        # A label at the left end begins there, so that it does not touch the word before it.
        middle = float(plane.x(value)) - SMALL * len(label) / 2 > LEFT - 6
        place = f'x="{plane.x(value)}" y="{below}" text-anchor="{"middle" if middle else "start"}"'
        parts.append(f'<text class="tick" {place}>{label}</text>')
    parts.append(f'<text class="tick" x="{LEFT - 8}" y="{below}" text-anchor="end">iteration</text>')
    parts.append(f'<path class="axis" d="M{LEFT} {plane.height - BELOW}H{plane.width - RIGHT}"/>')
    return "".join(parts)


def _curve(plane: Plane, series: Series, bins: Sequence[Bin]) -> str:
    line = _line(plane, bins)
    colour = f"var(--{series.colour})"
    if series.dots:
        dots = "".join(
            f'<circle cx="{plane.x(bin.x)}" cy="{plane.y(bin.mean)}" r="{3 if len(bins) < 60 else 1.5}">'
            f"<title>{escape(series.name)} after iteration {bin.x:.0f}: {bin.mean:.4g}</title></circle>"
            for bin in bins
        )
        path = f'<polyline class="line" stroke="{colour}" points="{line}"/>' if series.joined else ""
        return f'<g fill="{colour}">{path}{dots}</g>'
    back = [f"{plane.x(bin.x)},{plane.y(bin.low)}" for bin in reversed(bins)]
    forth = [f"{plane.x(bin.x)},{plane.y(bin.high)}" for bin in bins]
    wide = any(bin.low != bin.high for bin in bins)
    band = f'<polygon class="band" fill="{colour}" points="{" ".join(forth + back)}"/>' if wide else ""
    faint = f'<polyline class="line faint" stroke="{colour}" points="{line}"/>' if series.mean and not wide else ""
    bold = _line(plane, thin(series.mean)) if series.mean else line
    return f'{band}{faint}<polyline class="line" stroke="{colour}" points="{bold}"/>'


def _clipped(plane: Plane, curves: str, room: int = 5) -> str:
    """Clip the curves to the plot. room: pixels beyond it, so that dots at its border are complete."""
    x, y = LEFT - room, plane.above - room
    width, height = plane.width - LEFT - RIGHT + 2 * room, plane.height - plane.above - BELOW + 2 * room
    place = f'x="{x}" y="{y}" width="{width}" height="{height}"'
    return f'<svg class="plot" {place} viewBox="{x} {y} {width} {height}">{curves}</svg>'


def _beyond(plane: Plane, thinned: Sequence[tuple[Series, Sequence[Bin]]]) -> str:
    """Return a triangle at the upper edge for each outlier beyond the plot."""
    return "".join(
        f'<path class="beyond" fill="var(--{series.colour})" d="M{plane.x(bin.x)} {plane.above - 6}l5 8h-10z">'
        f"<title>{escape(series.name)} near iteration {bin.x:.0f}: {bin.high:.4g}</title></path>"
        for series, bins in thinned
        for bin in bins
        if bin.high * plane.factor > plane.y1
    )


def _note(plane: Plane, bins: Sequence[Bin]) -> str:
    """Say how large the outliers beyond the plot are; "" without outliers."""
    most = max((bin.high for bin in bins), default=0.0) * plane.factor
    return f"\N{BLACK UP-POINTING TRIANGLE} beyond the axis, up to {most:,.4g}" if most > plane.y1 else ""


def _line(plane: Plane, bins: Sequence[Bin]) -> str:
    return " ".join(f"{plane.x(bin.x)},{plane.y(bin.mean)}" for bin in bins)


def _cut(name: str, longest: int) -> str:
    """Return a name of at most so many characters, without those in its middle."""
    half = (longest - 1) // 2
    return name if len(name) <= longest else f"{name[:half]}…{name[-half:]}"


def _header(chart: Chart, unit: str, note: str, width: int) -> tuple[str, int]:
    """Return title, unit, note and legend, and the height that they take: more lines in a narrow chart."""
    right, bottom = width - RIGHT, 34
    squeezed = f' textLength="{right - LEFT}" lengthAdjust="spacingAndGlyphs"'
    title = f'<text class="title" x="{LEFT}" y="18"{squeezed * (LARGE * len(chart.title) > right - LEFT)}>'
    parts = [f"{title}{escape(chart.title)}</text>"]
    parts += [f'<text class="unit" x="{LEFT}" y="34">{escape(unit)}</text>'] if unit else []
    if note:
        bottom += 16 * (LEFT + SMALL * (len(unit) + len(note) + 2) > right)
        parts.append(f'<text class="note" x="{right}" y="{bottom}" text-anchor="end">{note}</text>')
    round_end = 'stroke-width="3" stroke-linecap="round"'
    names = [(series.name, f'stroke="var(--{series.colour})" {round_end}') for series in chart.series if series.points]
    names += [(chart.level[0], 'class="level"')] if chart.level else []
    longest = int((right - LEFT - 20) / SMALL)
    shown = [(_cut(name, longest), style) for name, style in names if len(names) > 1]
    keys = [(name, style, 36 + SMALL * len(name)) for name, style in shown]
    # Beside the title, at the right end, if there is room; else in lines of its own.
    x, y = right + 16 - sum(key_width for *_, key_width in keys), 18
    if keys and x < LEFT + LARGE * len(chart.title) + 16:
        x = LEFT
        y = bottom = bottom + 18
    for name, style, key_width in keys:
        if x + key_width - 16 > right + 1:
            x = LEFT
            y = bottom = bottom + 18
        parts.append(f'<path d="M{x:.0f} {y - 4}h14" {style}/>')
        parts.append(f'<text class="key" x="{x + 20:.0f}" y="{y}">{escape(name)}</text>')
        x += key_width
    return "".join(parts), bottom + 12


#: The CSS of colours, letters and charts, and of a page with charts.
_LIGHT, _DARK = (
    "--train: #2563eb; --validation: #d97706; --test: #0f9d58; --mark: #dc2626;",
    "--train: #60a5fa; --validation: #fbbf24; --test: #4ade80; --mark: #dc2626;",
)
#: Of curves alone, for a page with other colours.
CURVES = f"""
:root {{ {_LIGHT} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_DARK} }} }}
"""
COLOURS = f"""
:root {{ color-scheme: light dark; --paper: #f6f7f9; --card: #fff; --ink: #1c2128; --soft: #667080; --line: #e3e6ea;
  {_LIGHT} }}
@media (prefers-color-scheme: dark) {{ :root {{ --paper: #0e1116; --card: #171b22; --ink: #e4e8ee; --soft: #8e99a8;
  --line: #2a303a; {_DARK} }} }}
"""
FONT = """font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "Noto Sans", sans-serif;
  font-variant-numeric: tabular-nums;"""
CHART = """
svg text { font-size: 12px; fill: var(--soft); } svg .title { font-size: 14px; font-weight: 600; fill: var(--ink); }
svg .key { fill: var(--ink); } .grid { stroke: var(--line); } .axis { stroke: var(--soft); stroke-opacity: 0.6; }
.line { fill: none; stroke-width: 1.8; stroke-linejoin: round; } .faint { stroke-opacity: 0.35; }
.band { opacity: 0.22; } .level { stroke: var(--soft); stroke-dasharray: 2 4; }
"""
#: Of a description and of charts, which a page with other colours has too.
FIGURES = f"""
.description, figure {{ background: var(--card); border: 1px solid var(--line); border-radius: 10px; }}
.description {{ display: grid; grid-template-columns: max-content 1fr; gap: 4px 20px; margin: 12px 0;
  padding: 14px 18px; }}
dt {{ color: var(--soft); }} dd {{ margin: 0; overflow-wrap: anywhere; }}
.charts {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(340px, 100%), 1fr)); gap: 12px; }}
figure {{ margin: 0; padding: 12px 8px 4px; }} .wide {{ margin-bottom: 12px; }}
figure > svg {{ display: block; width: 100%; height: auto; }}
.charts svg {{ margin: auto; max-width: 460px; }}
figure > .phone {{ display: none; margin: auto; max-width: 640px; }}
@media (max-width: 900px) {{ .wide > svg {{ display: none; }} .wide > .phone {{ display: block; }} }}
{CHART}"""
STYLE = f"""{COLOURS}* {{ box-sizing: border-box; }}
body {{ margin: 0 auto; max-width: 1200px; padding: 28px 20px; background: var(--paper); color: var(--ink);
  {FONT} }}
header {{ display: flex; flex-wrap: wrap; align-items: baseline; gap: 4px 16px; margin-bottom: 16px; }}
h1 {{ font-size: 24px; margin: 0; }} header span {{ color: var(--soft); }}
.tiles {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; }}
.tiles div {{ background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 12px 16px; }} .tiles b {{ display: block; font-size: 21px; font-weight: 600; }}
.tiles span {{ color: var(--soft); font-size: 13px; }}
{FIGURES}footer {{ margin-top: 16px; color: var(--soft); font-size: 14px; }} a {{ color: var(--train); }}
"""
