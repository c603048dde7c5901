"""The plan as one self-contained HTML page: charts in CSS and SVG, with a light and a dark colour scheme."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from neoxargs.base.charts.html_page import html_page
from neoxargs.base.charts.line_chart import CURVES, FIGURES
from neoxargs.base.text import (
    format_bytes,
    format_count,
    format_duration,
    format_number,
    format_percent,
)
from neoxargs.facts import timeline_page
from neoxargs.facts.description import batch_equation
from neoxargs.files.token_files.timeline import timeline_of
from neoxargs.plan.advice.smaller import Suggestion
from neoxargs.plan.estimate import Plan
from neoxargs.plan.output.style import STYLE
from neoxargs.plan.output.svg import MAX_LABELLED, memory_chart, ranks_chart, stages_chart, step_chart
from neoxargs.plan.output.wording import (
    NOTHING_FITS,
    assumption_notes,
    describe_effect,
    priced,
    ranged,
    ranks_per_host,
    verdict,
)


def to_html(plan: Plan, suggestions: Sequence[Suggestion], files: Sequence[str]) -> str:
    """Return the whole document. files: the configuration files, which its header names."""
    title = f"{format_count(sum(plan.parts.values()))} parameters on {plan.layout.ranks} x {plan.target.device.name}"
    style = "overflow" if not plan.fits else "fits" if plan.has_verdict else "unknown"
    word, _, reason = verdict(plan).partition(": ")
    sections = "\n".join(_sections(plan, suggestions))
    content = f"""
<main>
<header>
<p class="files">{escape(", ".join(files))}</p>
<h1>{escape(title)}</h1>
<p class="verdict {style}"><b>{word}</b> {escape(reason)}</p>
</header>
{_cards(plan)}
{sections}
</main>
"""
    return html_page(title, STYLE + CURVES + FIGURES + timeline_page.STYLE, content)


def _sections(plan: Plan, suggestions: Sequence[Suggestion]) -> Iterator[str]:
    if suggestions or not plan.fits:
        order = "in order of step time" if len(suggestions) > 1 else ""
        title = "Changes that would speed up training" if plan.fits else "Changes that would make the run fit"
        yield _section(title, order, _suggestions(suggestions))
    fullest = plan.fullest
    where = f"of stage {fullest.stage.index}, which has the highest peak, " if len(plan.stage_memory) > 1 else ""
    yield _section("Memory", f"per rank {where}in each phase", memory_chart(plan))
    yield _section("Stages", "peak memory per rank in each pipeline stage", stages_chart(plan))
    context = f" x context {plan.layout.context}" if plan.layout.context > 1 else ""
    layout = f"tensor {plan.layout.tensor}{context} x pipeline {plan.layout.pipe} x data {plan.layout.data}"
    letters = "; d is the replica" + ", c the context parallel rank" * bool(context)
    letters += ", t the tensor parallel rank" * (plan.layout.tensor > 1)
    labels = letters if plan.layout.ranks <= MAX_LABELLED else ""
    legend = f"{layout}; each frame is a host, joined cells are a tensor parallel group{labels}"
    yield _section("Ranks", legend, ranks_chart(plan))
    yield _section("Step time", f"about {ranged(plan.speed.step, plan.time_error, format_duration)}", step_chart(plan))
    yield _section("Batch", "", f'<p class="equation">{escape(batch_equation(plan.config))}</p>')
    yield _section("Whole run", "", timeline_page.section(timeline_of(plan.config)))
    notes = "".join(f"<li>{escape(note)}</li>" for note in assumption_notes(plan))
    yield _section("Assumptions", "", f"<ul>{notes}</ul>")


def _section(title: str, subtitle: str, body: str) -> str:
    beside = f"<span>{escape(subtitle)}</span>" if subtitle else ""
    return f"<section><h2>{title}{beside}</h2>{body}</section>"


def _cards(plan: Plan) -> str:
    speed, peak, error = plan.speed, plan.fullest.peak, plan.time_error
    share = f"{format_percent(peak, plan.usable)} of the usable memory" if plan.usable else "per rank"
    rate = ranged(speed.tokens_per_second, error, format_number)
    cards = [
        ("peak memory", ranged(peak, plan.memory_error, format_bytes), share),
        ("host memory", ranged(plan.host_peak, plan.host_error, format_bytes), f"host with {ranks_per_host(plan)}"),
        ("speed", f"{ranged(speed.tflops_per_device, error, format_number)} TFLOP/s",
         f"per device, {format_percent(plan.peak_share, 1)} of its peak rate; {rate} tokens/s"),
        ("training", ranged(speed.total, error, format_duration),
         f"{speed.train_iters:,} steps{priced(plan, speed.total)}"),
    ]  # fmt: skip
    boxes = (f"<div><span>{label}</span><b>{value}</b><small>{note}</small></div>" for label, value, note in cards)
    return f'<div class="cards">{"".join(boxes)}</div>'


def _suggestions(suggestions: Sequence[Suggestion]) -> str:
    if not suggestions:
        return f"<p>{NOTHING_FITS.capitalize()}.</p>"
    drawn = []
    for each in suggestions:
        lines = escape("\n".join(f"--set {override}" for override in each.overrides))
        drawn.append(f'<div class="suggestion"><pre>{lines}</pre><p>{describe_effect(each)}</p></div>')
    return "".join(drawn)
