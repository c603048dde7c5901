"""The charts of the page: memory by phase and by stage, the grid of ranks, the components of the step time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby

from neoxargs.base.charts.bars import GAP, LEFT, RIGHT, legend, limit_mark, stacked_bar
from neoxargs.base.text import format_bytes, format_count, format_duration, format_percent
from neoxargs.facts.layout import Layout
from neoxargs.plan.estimate import Plan
from neoxargs.plan.given.placement import RankPlacement, rank_placements
from neoxargs.plan.memory.breakdown import PHASES, RankMemory
from neoxargs.plan.output import style
from neoxargs.plan.output.wording import LONGEST, bytes_of_track

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
    return _bars(plan, [(label, parts, format_bytes(sum(parts.values()))) for label, parts in rows])


def stages_chart(plan: Plan) -> str:
    """A stacked bar for each stage in the phase of its peak."""
    drawn = plan.stage_memory[:MAX_STAGES]
    if plan.fullest not in drawn:
        drawn = [*drawn[:-1], plan.fullest]
    rows = [(f"stage {rank.stage.index}", rank.phases[rank.peak_phase], _stage_caption(rank)) for rank in drawn]
    omitted = len(plan.stage_memory) - len(drawn)
    note = f'<p class="legend">{len(drawn)} of {len(plan.stage_memory)} stages are shown</p>' if omitted else ""
    return _bars(plan, rows) + note


def _stage_caption(rank: RankMemory) -> str:
    layers = rank.stage.layers
    held = f"layers {layers[0]}-{layers[-1]}" if layers else "no layers"
    return f"{format_bytes(rank.peak)} · {held} · {format_count(rank.stage.parameters)} parameters · {rank.peak_phase}"


def step_chart(plan: Plan) -> str:
    """One stacked bar of the components of the step time."""
    step = plan.speed.step

    def value(seconds: float) -> str:
        return f"{format_duration(seconds)}, {format_percent(seconds, step)}"

    return stacked_bar("", plan.speed.components, style.TIME, step, value)


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
    stages_legend = legend([(f"stage {index}", style.stage_colour(index, plan.layout.pipe)) for index in stages])
    omitted = plan.layout.pipe - len(stages)
    note = f"colours of the first {MAX_STAGES} of {plan.layout.pipe} stages"
    return grid + stages_legend + (f'<p class="legend">{note}</p>' if omitted else "")


def _host(name: str, members: Sequence[RankPlacement], plan: Plan, labelled: bool) -> str:
    groups = groupby(members, key=lambda placement: (placement.pipe, placement.data, placement.context))
    drawn = "".join(
        f'<span class="group" style="background: {style.stage_colour(pipe, plan.layout.pipe)}">'
        f"{''.join(_cell(placement, labelled, plan.layout) for placement in group)}</span>"
        for (pipe, *_), group in groups
    )
    return f'<div class="host"><h3>{escape(name)}</h3><div class="cells">{drawn}</div></div>'


def _cell(placement: RankPlacement, labelled: bool, layout: Layout) -> str:
    rank, host, slot, tensor, pipe, data, context = placement
    title = f"rank {rank}: {host} slot {slot}, stage {pipe}, replica {data}, tensor parallel rank {tensor}"
    title += f", context parallel rank {context}" if layout.context > 1 else ""
    letters = f"d{data}" + f" c{context}" * (layout.context > 1) + f" t{tensor}" * (layout.tensor > 1)
    inside = f"{rank}<small>{letters}</small>" if labelled else ""
    return f'<span class="cell" title="{escape(title)}">{inside}</span>'


def _bars(plan: Plan, rows: Sequence[Bar]) -> str:
    """Stacked bars on a common scale, with a mark where the usable memory ends."""
    # with a margin, so that a full bar does not touch the end of its track
    scale, usable = bytes_of_track(plan) * 1.02, plan.usable
    limit = limit_mark(LEFT + (RIGHT - LEFT) * usable / scale) if usable else ""
    drawn, is_cut = [], False
    for label, parts, caption in rows:
        total = sum(parts.values())
        is_cut |= total > scale
        over = ' class="over"' if usable and total > usable else ""
        marks = (GAP if total > scale else "") + limit
        title = f"<p><b>{label}</b> <span{over}>{caption}</span></p>"
        drawn.append(stacked_bar(title, parts, style.PARTS, max(scale, total), format_bytes, marks))
    key = f'<p class="legend"><span><i class="limit"></i>{format_bytes(usable)} usable</span></p>' if usable else ""
    note = f"a bar with a gap is more than {LONGEST} times the usable memory; its parts are in proportion"
    return "".join(drawn) + key + (f'<p class="legend">{note}</p>' if is_cut else "")
