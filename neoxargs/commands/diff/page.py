"""`--html FILE`: the comparison on one page, with both loss curves; without scripts or network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from neoxargs.base.charts.html_page import html_page
from neoxargs.base.charts.line_chart import STYLE, Chart, figure, smoothed
from neoxargs.commands.diff.differences import RankedDifference
from neoxargs.commands.diff.losses import Losses
from neoxargs.commands.diff.side import Side, short_pair
from neoxargs.commands.diff.text import HEADINGS, described, earlier, verdict
from neoxargs.commands.diff.weights import WeightComparison

UNIT = "nats per token"
#: Characters of a short cell; the values of parameters are shown with no more.
MAX_SHORT = 36
#: Columns with a title, at most.
MAX_COLUMNS = 6


def page(
    a: Side,
    b: Side,
    found: Sequence[RankedDifference],
    losses: Losses | None,
    at: Sequence[tuple[str, str, str]],
    step: int,
    weights: WeightComparison | None,
) -> str:
    """Return the page as HTML. at: the rows of `--at`, for this step."""
    sections = [_losses(losses)] if losses else []
    sections += [_table(f"At step {step}", ("", "A", "B"), at)] if at else []
    for impact, heading in HEADINGS.items():
        rows = [
            (each.kind, each.name, *short_pair(*each.values), *each.sources, each.note)
            for each in found
            if each.impact == impact
        ]
        if rows:
            head = ("kind", "parameter", "A", "B", "source of A", "source of B", "")
            sections.append(_table(heading[:1].upper() + heading[1:], head, rows))
    if before := earlier(a, b):
        sections.append(_table("Other values in earlier launches", ("", "steps", "parameter", "value"), before))
    if weights:
        sections.append(f"<h2>Weights and optimizer state</h2>{_list(line for line, *_ in weights.lines())}")
        titles, *tensors = [*weights.table()] or [()]
        sections += [_table("Tensors that differ", titles, tensors)] if titles else []
    sides = "".join(f"<dt>{letter}</dt><dd>{escape(described(side))}</dd>" for letter, side in (("A", a), ("B", b)))
    title = f"{a.name} and {b.name}"
    header = f"<header><h1>{escape(title)}</h1><span>{escape(verdict(a, b, found, weights))}</span></header>"
    content = f'{header}\n<dl class="description">{sides}</dl>\n{"".join(sections)}'
    return html_page(title, STYLE + TABLES, content)


def _losses(losses: Losses) -> str:
    series = []
    for name, colour, of_run in (("A", "train", losses.a), ("B", "validation", losses.b)):
        points = [(step, loss) for step, loss in sorted(of_run.items()) if loss is not None]
        series.append(smoothed(name, colour, points))
    pairs = ((step, losses.a[step], losses.b[step]) for step in losses.common)
    apart = [(step, abs(one - other)) for step, one, other in pairs if one is not None and other is not None]
    steps = min(losses.a | losses.b), max(losses.a | losses.b)  # both charts have the same horizontal axis
    curve = smoothed("absolute difference", "test", apart)
    charts = [
        (Chart("Training loss", UNIT, series, floats=True, steps=steps), 340),
        (Chart("Absolute difference of the losses", UNIT, [curve], steps=steps), 200),
    ]
    figures = "".join(figure(chart, height) for chart, height in charts if any(curve.points for curve in chart.series))
    return f"<h2>Losses</h2>{_list(losses.lines())}{figures}"


def _list(lines: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


def _table(heading: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    # A short text, such as a number, is never broken into lines.
    cells = ([f"<td{' class=short' * (len(text) <= MAX_SHORT)}>{escape(text)}</td>" for text in row] for row in rows)
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in cells)
    titles = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    # On a phone, where a row becomes a block, the cells have these titles in front of them.
    names = "".join(f'--c{number}:"{title}: ";' for number, title in enumerate(head, 1) if title)
    table = f'<table style="{escape(names)}"><tr>{titles}</tr>{body}</table>'
    return f"<h2>{escape(heading)}</h2><div class=scroll>{table}</div>"


TABLES = f"""
h2 {{ font-size: 17px; margin: 24px 0 8px; }} ul {{ margin: 0 0 12px; padding-left: 20px; }}
.scroll {{ overflow-x: auto; background: var(--card); border: 1px solid var(--line); border-radius: 10px; }}
table {{ border-collapse: collapse; width: 100%; font-size: 14px; }}
th, td {{ text-align: left; padding: 5px 12px; border-top: 1px solid var(--line); vertical-align: top; }}
tr:first-child th {{ border: 0; color: var(--soft); font-weight: 500; }}
td:nth-child(1) {{ color: var(--soft); }} td {{ overflow-wrap: anywhere; }} td.short {{ white-space: nowrap; }}
@media (max-width: 700px) {{
  table, tbody, tr, td {{ display: block; }} tr:first-child, td:empty {{ display: none; }}
  tr {{ border-top: 1px solid var(--line); padding: 6px 12px; }}
  td, td.short {{ border: 0; padding: 0; white-space: normal; }}
  td::before {{ color: var(--soft); }}
  {" ".join(f"td:nth-child({n})::before {{ content: var(--c{n}); }}" for n in range(1, MAX_COLUMNS + 1))}
}}
"""
