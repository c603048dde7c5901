"""The plan as one HTML page without anything outside of it: pictures in CSS and SVG, for light and dark screens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from neoxargs.launch.report import summary
from neoxargs.text import format_bytes, format_count, format_duration, format_number, format_percent
from neoxargs.tools.plan.advice import Suggestion
from neoxargs.tools.plan.output.style import STYLE
from neoxargs.tools.plan.output.svg import memory_chart, ranks_chart, stages_chart, step_chart
from neoxargs.tools.plan.output.wording import assumption_notes, price, verdict
from neoxargs.tools.plan.plan import Plan


def to_html(plan: Plan, found: Sequence[Suggestion], files: Sequence[str]) -> str:
    """The whole document."""
    title = f"{format_count(sum(plan.parts.values()))} parameters on {plan.layout.ranks} x {plan.target.device.name}"
    sections = "\n".join(_sections(plan, found))
    return f"""<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}</style>
<main>
<header>
<p class="files">{escape(", ".join(files))}</p>
<h1>{escape(title)}</h1>
<p class="verdict {_colour(plan)}"><b>{_verdict_word(plan)}</b> {escape(_verdict_rest(plan))}</p>
</header>
{_cards(plan)}
{sections}
</main>
</html>
"""


def _sections(plan: Plan, found: Sequence[Suggestion]) -> Iterator[str]:
    if not plan.fits:
        how = "planned again with each of these changes; cheapest first"
        yield _section("What would fit", how, _suggestions(found))
    fullest = plan.fullest
    where = f"a rank of stage {fullest.stage.index}, the fullest" if len(plan.stage_memory) > 1 else "each rank"
    yield _section("Memory", f"{where}, through one step", memory_chart(plan))
    yield _section("Stages", "the fullest moment of a rank of each pipeline stage", stages_chart(plan))
    layout = f"{plan.layout.tensor} tensor x {plan.layout.pipe} pipeline x {plan.layout.data} data"
    legend = f"{layout}; a frame is a machine, a run of joined cells a tensor parallel group"
    yield _section("Ranks", legend, ranks_chart(plan))
    yield _section("One step", f"about {format_duration(plan.speed.step)}, and what it goes to", step_chart(plan))
    yield _section("Batch", "", f'<p class="equation">{escape(summary.batch_equation(plan.config))}</p>')
    yield _section("Assumed", "", _list(assumption_notes(plan)))


def _section(title: str, about: str, body: str) -> str:
    subtitle = f"<span>{escape(about)}</span>" if about else ""
    return f"<section><h2>{title}{subtitle}</h2>{body}</section>"


def _colour(plan: Plan) -> str:
    return "breaks" if not plan.fits else "fits" if plan.has_verdict else "unknown"


def _verdict_word(plan: Plan) -> str:
    return {"unknown": "no verdict", "fits": "fits", "breaks": "does not fit"}[_colour(plan)]


def _verdict_rest(plan: Plan) -> str:
    return verdict(plan).removeprefix("fits: ").removeprefix("does not fit: ").removeprefix("no verdict: ")


def _cards(plan: Plan) -> str:
    speed, peak = plan.speed, plan.fullest.peak
    cards = [
        ("peak", format_bytes(peak), f"{format_percent(peak, plan.usable)} of what may be used" if plan.usable else ""),
        ("host memory", format_bytes(plan.host_peak), f"a machine of {plan.ranks_per_host} ranks"),
        ("speed", f"{format_number(speed.tflops_per_device)} TFLOP/s",
         f"a device; {speed.tokens_per_second:,.0f} tokens/s"),
        ("training", format_duration(speed.total), f"{speed.train_iters:,} steps"),
    ]  # fmt: skip
    boxes = (f"<div><span>{label}</span><b>{value}</b><small>{more}</small></div>" for label, value, more in cards)
    return f'<div class="cards">{"".join(boxes)}</div>'


def _suggestions(found: Sequence[Suggestion]) -> str:
    if not found:
        return "<p>Nothing small helps: it takes more devices, larger ones, or a smaller model.</p>"
    return "".join(_suggestion(suggestion) for suggestion in found)


def _suggestion(suggestion: Suggestion) -> str:
    lines = "\n".join(f"--set {override}" for override in suggestion.overrides)
    return f'<div class="instead"><pre>{escape(lines)}</pre><p>{price(suggestion)}</p></div>'


def _list(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"
