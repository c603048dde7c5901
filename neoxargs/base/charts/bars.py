"""Stacked bars that stretch to the width of the page, and legends; the texts are HTML, which keeps its size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

#: In user units of the SVG: left and right end of a bar, and its height.
LEFT, RIGHT, HEIGHT = 0, 1000, 20
#: A slanted gap near the end of a bar that is cut.
GAP = f'<path class="gap" d="M{RIGHT - 46} {HEIGHT}l12 -{HEIGHT}h9l-12 {HEIGHT}z"/>'


def limit_mark(x: float) -> str:
    """A dashed line, on a ground of its own that sets it off from the parts."""
    return (
        f'<path class="under" d="M{x:.1f} 0V{HEIGHT}"/>'
        f'<line class="limit" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{HEIGHT}"/>'
    )


def stacked_bar(
    title: str,
    parts: Mapping[str, float],
    colours: Mapping[str, str],
    scale: float,
    format_value: Callable[[float], str],
    marks: str = "",
) -> str:
    """A stacked bar beneath its title. Each part is named with its value below the bar, however narrow the part is."""
    x, pieces, names = float(LEFT), [], []
    for part in (part for part in colours if parts.get(part, 0) > 0):
        width, value = (RIGHT - LEFT) * parts[part] / scale, format_value(parts[part])
        place = f'x="{x:.2f}" y="0" width="{width:.2f}" height="{HEIGHT}"'
        pieces.append(f'<rect {place} fill="{colours[part]}"><title>{part}: {value}</title></rect>')
        names.append((f"{part} {value}", colours[part]))
        x += width
    # The texts beneath say what the picture shows.
    picture = f'<svg viewBox="{LEFT} 0 {RIGHT - LEFT} {HEIGHT}" preserveAspectRatio="none" aria-hidden="true">'
    return f'<div class="bar">{title}{picture}{"".join(pieces)}{marks}</svg>{legend(names)}</div>'


def legend(entries: Sequence[tuple[str, str]]) -> str:
    keys = "".join(f'<span><i style="background: {colour}"></i>{name}</span>' for name, colour in entries)
    return f'<div class="legend">{keys}</div>'
