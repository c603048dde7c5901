"""A timeline as a part of an HTML page: the pages of a preview, of a plan and of a run draw it alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from neoxargs.base.charts.line_chart import PHONE, Chart, Point, Series, draw, figure
from neoxargs.base.text import format_count, format_percent
from neoxargs.facts.timeline import Timeline
from neoxargs.facts.timeline_words import (
    batch_sizes,
    columns,
    evaluation,
    learning_rate,
    saves,
    sequence_lengths,
    weight_decay,
)

#: Colours of the curves of sources, legible on a light and a dark ground.
SOURCE_COLOURS = ("#2563eb", "#d97706", "#0f9d58", "#a855f7", "#e2605f", "#0ea5b7", "#c9a227", "#9a9aa6")
#: Names of the columns of the table of sources.
COLUMNS = ("source", "share", "tokens read", "one pass", "epochs", "first repeated")


def section(timeline: Timeline, measured: Sequence[Point] = ()) -> str:
    """Return sentences, charts and the table of sources; no charts if no iteration is left.

    measured: iteration and learning rate, as far as the run has come.
    """
    rows = {
        "learning rate": [learning_rate(timeline)],
        "weight decay": [weight_decay(timeline)] if timeline.weight_decay.changes else [],
        "batch size": [batch_sizes(timeline)] if timeline.sizes.changes else [],
        "sequences": [sequence_lengths(timeline)] if timeline.lengths.changes else [],
        "evaluation": [evaluation(timeline)],
        "checkpoints": [saves(timeline)],
    }
    drawn = ""
    if timeline.left:
        first, *others = _charts(timeline, measured)
        small = "".join(f"<figure>{draw(chart, PHONE)}</figure>" for chart in others)
        drawn = f'{figure(first)}\n<div class="charts">{small}</div>\n'
    return description(rows) + drawn + _sources(timeline)


def description(rows: Mapping[str, Sequence[str]]) -> str:
    """Return labels with the lines of each."""
    listed = (f"<dt>{label}</dt><dd>{'<br>'.join(map(escape, lines))}</dd>" for label, lines in rows.items() if lines)
    return f'<dl class="description">{"".join(listed)}</dl>\n'


def _charts(timeline: Timeline, measured: Sequence[Point]) -> Iterator[Chart]:
    steps = (float(timeline.start + 1), float(timeline.iterations))
    rates = [Series("planned", "train", [(float(iteration), rate) for iteration, rate in timeline.learning_rate])]
    rates += [Series("measured", "validation", measured)] if measured else []
    yield Chart("Learning rate", "", rates, steps=steps)
    if timeline.weight_decay.changes:
        decays = [(float(iteration), decay) for iteration, decay in timeline.weight_decays]
        yield Chart("Weight decay", "", [Series("weight decay", "test", decays)], steps=steps)
    if len(timeline.batches) > 1:
        sizes = Series("batch size", "train", _stairs(timeline, timeline.batches))
        yield Chart("Batch size", "samples", [sizes], steps=steps)
    if len(timeline.sequences) > 1:
        lengths = Series("sequence length", "train", _stairs(timeline, timeline.sequences))
        yield Chart("Sequence length", "tokens", [lengths], steps=steps)
    epochs = [
        Series(each.name, f"source{number}", timeline.passes(each))
        for number, each in enumerate(timeline.drawn[: len(SOURCE_COLOURS)])
        if each.available
    ]
    if epochs:
        highest = max(point[1] for each in epochs for point in each.points)
        level = ("one epoch", 1.0) if highest > 1 else None
        yield Chart("Passes over each source", "epochs", epochs, level=level, steps=steps)
    line = [(iteration, samples * timeline.tokens_per_sample) for iteration, samples in timeline.samples_read]
    done = ("done already", float(timeline.tokens(timeline.start))) if timeline.start else None
    yield Chart("Tokens", "", [Series("tokens", "train", line)], level=done, steps=steps)
    if timeline.disk_bytes:
        disk = Series("checkpoints", "validation", [(float(iteration), size) for iteration, size in timeline.disk])
        most = ("at most, while one is written", float(timeline.disk_bytes))
        yield Chart("Checkpoints on disk", "bytes", [disk], level=most, steps=steps)


def _stairs(timeline: Timeline, sizes: Sequence[tuple[int, int]]) -> list[Point]:
    """Return a size along the iterations, constant up to each new one."""
    points: list[Point] = []
    for iteration, size in sizes:
        points += [(iteration, points[-1][1])] if points else []
        points.append((iteration, float(size)))
    return [*points, (timeline.iterations, points[-1][1])]


def _sources(timeline: Timeline) -> str:
    """Return the table of sources; on a phone, its style makes a block of each row."""
    if not timeline.drawn:
        return ""
    names = [name.replace("read", "left") if timeline.start else name for name in COLUMNS]
    tokens, rows = [timeline.tokens_left_of(each) for each in timeline.drawn], []
    for each, left in zip(timeline.drawn, tokens, strict=True):
        read = format_percent(left, sum(tokens) or 1), format_count(left)
        cells = zip(names, (each.name, *read, *columns(each, timeline)), strict=True)
        rows.append("".join(f'<td data-name="{name}">{escape(cell)}</td>' for name, cell in cells))
    head = "".join(f"<th>{name}</th>" for name in names)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'<table class="sources"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>\n'


_COLOURS = "; ".join(f"--source{number}: {colour}" for number, colour in enumerate(SOURCE_COLOURS))
STYLE = f"""
:root {{ {_COLOURS} }}
.sources {{ background: var(--card); border: 1px solid var(--line); border-radius: 10px; border-spacing: 0;
  margin-top: 12px; padding: 8px 18px 12px; width: 100%; }}
.sources th {{ color: var(--soft); font-weight: 400; }}
.sources th, .sources td {{ padding: 4px 12px 4px 0; text-align: right; }}
.sources th:first-child, .sources td:first-child {{ overflow-wrap: anywhere; text-align: left; }}
@media (max-width: 700px) {{
  .sources, .sources tbody, .sources tr, .sources td {{ display: block; }} .sources thead {{ display: none; }}
  .sources td {{ display: flex; justify-content: space-between; padding: 1px 0; }}
  .sources td:empty {{ display: none; }}
  .sources td:first-child {{ font-weight: 600; padding-top: 8px; }}
  .sources td:not(:first-child)::before {{ color: var(--soft); content: attr(data-name); }}
  .description {{ grid-template-columns: 1fr; gap: 0; }} .description dd {{ margin-bottom: 6px; }}
}}
"""
