"""The charts of the page: memory by phase and by stage, the grid of ranks, the components of the step time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from itertools import groupby

from neoxargs.text import format_bytes, format_count, format_duration, format_percent
from neoxargs.tools.plan.memory.breakdown import PARTS, PHASES, RankMemory
from neoxargs.tools.plan.output import style
from neoxargs.tools.plan.output.scale import LONGEST, bytes_of_track
from neoxargs.tools.plan.placement import RankPlacement, rank_placements
from neoxargs.tools.plan.plan import Plan

#: In user units of the SVG: width of a chart, left and right end of its bars, height of a row.
WIDTH, LEFT, RIGHT, ROW = 1060, 120, 960, 38
#: The most ranks whose cells have labels; with more, a cell is a coloured square.
MAX_LABELLED = 256
#: The most ranks whose squares are 9 pixels wide; with more, they are 5.
MAX_LARGE_SQUARES = 2048
#: The most stages that are drawn.
MAX_STAGES = 16

#: Label of a bar, its parts (part -> bytes) and its caption.
Bar = tuple[str, Mapping[str, int], str]


def memory_chart(plan: Plan) -> str:
    """A stacked bar for each phase, on a rank of the stage with the highest peak."""
    fullest = plan.fullest
    rows = [(phase, fullest.phases[phase]) for phase in PHASES]
    drawn = [(label, parts, format_bytes(sum(parts.values()))) for label, parts in rows]
    return _bars(plan, drawn) + _parts_legend(drawn)


def stages_chart(plan: Plan) -> str:
    """A stacked bar for each stage in the phase of its peak."""
    drawn = plan.stage_memory[:MAX_STAGES]
    if plan.fullest not in drawn:
        drawn = [*drawn[:-1], plan.fullest]
    rows = [(f"stage {rank.stage.index}", rank.phases[rank.peak_phase], _stage_caption(rank)) for rank in drawn]
    omitted = len(plan.stage_memory) - len(drawn)
    note = f'<p class="legend">{len(drawn)} of {len(plan.stage_memory)} stages are shown</p>' if omitted else ""
    return _bars(plan, rows, beneath=True) + _parts_legend(rows) + note


def _stage_caption(rank: RankMemory) -> str:
    layers = rank.stage.layers
    held = f"layers {layers[0]}-{layers[-1]}" if layers else "no layers"
    return f"{format_bytes(rank.peak)} · {held} · {format_count(rank.stage.parameters)} parameters · {rank.peak_phase}"


def step_chart(plan: Plan) -> str:
    """One stacked bar of the components of the step time."""
    speed = plan.speed
    seconds = (speed.compute, speed.bubble, speed.tensor, speed.pipe, speed.data, speed.experts, speed.optimizer)
    terms = {name: time for name, time in zip(style.TIME, seconds, strict=True) if time}
    pieces = "".join(_pieces(terms, style.TIME, speed.step, (0, WIDTH), 0, format_duration))
    named = [(f"{name} {format_percent(time, speed.step)}", style.TIME[name]) for name, time in terms.items()]
    return _svg(30, _rounded("step", 0, WIDTH, 0) + f'<g clip-path="url(#step)">{pieces}</g>') + _legend(named)


def ranks_chart(plan: Plan) -> str:
    """A cell for each rank on its host, coloured by stage; ranks of one tensor parallel group are joined."""
    labelled = plan.layout.ranks <= MAX_LABELLED
    hosts = groupby(rank_placements(plan.spec.resources, plan.layout), key=lambda placement: placement.host)
    frames = "".join(_host(host, list(members), plan, labelled) for host, members in hosts)
    in_row = min(plan.ranks_per_host, 8)
    width = 24 + in_row * (32 + 5 / min(plan.layout.tensor, in_row))
    dot = 9 if plan.layout.ranks <= MAX_LARGE_SQUARES else 5
    classes = "hosts" if labelled else "hosts small"
    grid = f'<div class="{classes}" style="--frame: {width:.0f}px; --dot: {dot}px">{frames}</div>'
    stages = range(min(plan.layout.pipe, MAX_STAGES))
    legend = _legend([(f"stage {index}", style.stage_colour(index, plan.layout.pipe)) for index in stages])
    omitted = plan.layout.pipe - len(stages)
    note = f"colours of the first {MAX_STAGES} of {plan.layout.pipe} stages"
    return grid + legend + (f'<p class="legend">{note}</p>' if omitted else "")


def _host(name: str, members: Sequence[RankPlacement], plan: Plan, labelled: bool) -> str:
    groups = groupby(members, key=lambda placement: (placement.pipe, placement.data))
    drawn = "".join(
        f'<span class="group" style="background: {style.stage_colour(pipe, plan.layout.pipe)}">'
        f"{''.join(_cell(placement, labelled) for placement in group)}</span>"
        for (pipe, _), group in groups
    )
    return f'<div class="host"><h3>{escape(name)}</h3><div class="cells">{drawn}</div></div>'


def _cell(placement: RankPlacement, labelled: bool) -> str:
    rank, host, slot, tensor, pipe, data = placement
    title = f"rank {rank}: {host} slot {slot}, stage {pipe}, replica {data}, tensor parallel rank {tensor}"
    inside = f"{rank}<small>d{data} t{tensor}</small>" if labelled else ""
    return f'<span class="cell" title="{escape(title)}">{inside}</span>'


def _bars(plan: Plan, rows: Sequence[Bar], beneath: bool = False) -> str:
    """Stacked bars on a common scale. beneath: put captions below the bars instead of to their right."""
    # a common scale for all bars, with a margin, so that a full bar does not touch the end of its track
    scale = bytes_of_track(plan) * 1.02
    usable, pitch = plan.usable, ROW + (16 if beneath else 0)
    drawn, top = [], 22 if usable else 4
    for index, (label, parts, caption) in enumerate(rows):
        y, total = top + index * pitch, sum(parts.values())
        clip = f"bar{label.replace(' ', '')}"
        end = LEFT + (RIGHT - LEFT) * min(total / scale, 1)
        over = ' class="over"' if usable and total > usable else ""
        x = LEFT if beneath else RIGHT + 10
        pieces = "".join(_pieces(parts, style.PARTS, max(scale, total), (LEFT, RIGHT), y, format_bytes))
        drawn += [
            f'<text x="0" y="{y + 19}">{label}</text>',
            f'<rect class="track" x="{LEFT}" y="{y}" width="{RIGHT - LEFT}" height="28" rx="6"/>',
            _rounded(clip, LEFT, end - LEFT, y),
            f'<g clip-path="url(#{clip})">{pieces}</g>',
            _break(y) if total > scale else "",
            f'<text x="{x}" y="{y + (42 if beneath else 19)}"{over}>{caption}</text>',
        ]
    tops = [top + index * pitch for index in range(len(rows))]
    is_cut = any(sum(parts.values()) > scale for _, parts, _ in rows)
    note = f"a bar with a gap is more than {LONGEST} times the usable memory; its parts are in proportion"
    chart = _svg(top + len(rows) * pitch, "".join([*drawn, *_limit(plan, scale, tops)]))
    return chart + (f'<p class="legend">{note}</p>' if is_cut else "")


def _break(y: int) -> str:
    """A slanted gap near the end of a bar that is cut."""
    return f'<path class="gap" d="M{RIGHT - 46} {y + 30}l12 -32h9l-12 32z"/>'


def _limit(plan: Plan, scale: float, tops: Sequence[int]) -> Iterator[str]:
    """A mark across each bar where usable memory ends; it does not cross the captions between the bars."""
    if plan.usable is None:
        return
    x = LEFT + (RIGHT - LEFT) * plan.usable / scale
    for y in tops:
        yield f'<line class="limit" x1="{x:.1f}" x2="{x:.1f}" y1="{y - 4}" y2="{y + 30}"/>'
    yield f'<text class="soft" x="{x:.1f}" y="12" text-anchor="middle">{format_bytes(plan.usable)} usable</text>'


def _pieces(
    parts: Mapping[str, float],
    colours: Mapping[str, str],
    scale: float,
    ends: tuple[int, int],
    y: int,
    format_value: Callable[[float], str],
) -> Iterator[str]:
    """The parts of a bar; those that are wide enough are labelled."""
    x = float(ends[0])
    for part in colours:
        width = (ends[1] - ends[0]) * parts.get(part, 0) / scale
        if width <= 0:
            continue
        title = f"<title>{part}: {format_value(parts[part])}</title>"
        yield f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="28" fill="{colours[part]}">{title}</rect>'
        # About 8 units for each character of the label.
        if width > 8 * len(part) + 4:
            yield f'<text class="inside" x="{x + width / 2:.1f}" y="{y + 18}" text-anchor="middle">{part}</text>'
        x += width


def _rounded(name: str, x: float, width: float, y: int) -> str:
    return f'<clipPath id="{name}"><rect x="{x}" y="{y}" width="{max(width, 1):.1f}" height="28" rx="6"/></clipPath>'


def _svg(height: int, body: str) -> str:
    return f'<div class="wide"><svg viewBox="0 0 {WIDTH} {height}" role="img">{body}</svg></div>'


def _parts_legend(rows: Sequence[Bar]) -> str:
    """A legend of the parts that are in at least one bar."""
    used = [part for part in PARTS if any(parts.get(part) for _, parts, _ in rows)]
    return _legend([(part, style.PARTS[part]) for part in used])


def _legend(entries: Sequence[tuple[str, str]]) -> str:
    keys = "".join(f'<span><i style="background: {colour}"></i>{name}</span>' for name, colour in entries)
    return f'<div class="legend">{keys}</div>'
