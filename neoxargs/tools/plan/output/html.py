"""The plan as one HTML page without anything outside of it: pictures in CSS and SVG, for light and dark screens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from neoxargs.launch.report import summary
from neoxargs.tools.plan.advice import Suggestion
from neoxargs.tools.plan.output.assumption_notes import notes
from neoxargs.tools.plan.output.style import STYLE
from neoxargs.tools.plan.output.svg import memory, ranks, stages, step
from neoxargs.tools.plan.output.wording import count, duration, figures, price, share, size, verdict
from neoxargs.tools.plan.plan import Plan


def html(plan: Plan, found: Sequence[Suggestion], files: Sequence[str]) -> str:
    """The whole document."""
    title = f"{count(sum(plan.parts.values()))} parameters on {plan.layout.ranks} x {plan.target.device.name}"
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
<p class="verdict {_colour(plan)}"><b>{_word(plan)}</b> {escape(_sentence(plan))}</p>
</header>
{_cards(plan)}
{sections}
</main>
</html>
"""


def _sections(plan: Plan, found: Sequence[Suggestion]) -> Iterator[str]:
    if not plan.fits:
        yield _section("What would fit", "planned again with each of these changes; cheapest first", _instead(found))
    worst = plan.worst
    where = f"a rank of stage {worst.stage.index}, the fullest" if len(plan.accounts) > 1 else "each rank"
    yield _section("Memory", f"{where}, through one step", memory(plan))
    yield _section("Stages", "the fullest moment of a rank of each pipeline stage", stages(plan))
    rank = f"{plan.layout.tensor} tensor x {plan.layout.pipe} pipeline x {plan.layout.data} data"
    yield _section("Ranks", f"{rank}; a frame is a machine, a run of joined cells a tensor parallel group", ranks(plan))
    yield _section("One step", f"about {duration(plan.speed.step)}, and what it goes to", step(plan))
    yield _section("Batch", "", f'<p class="equation">{escape(summary.batch(plan.config))}</p>')
    yield _section("Assumed", "", _list(notes(plan)))


def _section(title: str, about: str, body: str) -> str:
    told = f"<span>{escape(about)}</span>" if about else ""
    return f"<section><h2>{title}{told}</h2>{body}</section>"


def _colour(plan: Plan) -> str:
    return "breaks" if not plan.fits else "fits" if plan.known else "unknown"


def _word(plan: Plan) -> str:
    return {"unknown": "no verdict", "fits": "fits", "breaks": "does not fit"}[_colour(plan)]


def _sentence(plan: Plan) -> str:
    return verdict(plan).removeprefix("fits: ").removeprefix("does not fit: ").removeprefix("no verdict: ")


def _cards(plan: Plan) -> str:
    speed, usable = plan.speed, plan.usable
    cards = [
        ("peak", size(plan.worst.peak), f"{share(plan.worst.peak, usable)} of what may be used" if usable else ""),
        ("host memory", size(plan.host_need), f"a machine of {plan.slots} ranks"),
        ("speed", f"{figures(speed.tflops_per_device)} TFLOP/s", f"a device; {speed.tokens_per_second:,.0f} tokens/s"),
        ("training", duration(speed.total), f"{speed.train_iters:,} steps"),
    ]
    shown = "".join(
        f"<div><span>{label}</span><b>{value}</b><small>{more}</small></div>" for label, value, more in cards
    )
    return f'<div class="cards">{shown}</div>'


def _instead(found: Sequence[Suggestion]) -> str:
    if not found:
        return "<p>Nothing small helps: it takes more devices, larger ones, or a smaller model.</p>"
    return "".join(_suggestion(suggestion) for suggestion in found)


def _suggestion(suggestion: Suggestion) -> str:
    lines = "\n".join(f"--set {override}" for override in suggestion.overrides)
    told = price(suggestion)
    return f'<div class="instead"><pre>{escape(lines)}</pre><p>{told}</p></div>'


def _list(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"
