"""The forecast of a run as one screen of text."""

from __future__ import annotations

from collections.abc import Iterator

from neoxargs.base.problems import listed
from neoxargs.base.text import format_count, format_duration, format_percent, protect_names, shorten, wrap
from neoxargs.commands.preview.forecast import Forecast
from neoxargs.facts.context import in_words
from neoxargs.facts.description import batch_equation, counted, rates_beside
from neoxargs.facts.timeline_words import (
    batch_sizes,
    columns,
    evaluation,
    learning_rate,
    saves,
    sequence_lengths,
    weight_decay,
)
from neoxargs.plan.output.wording import priced, ranged, verdict
from neoxargs.runs.summary import LABEL, WIDTH

#: Differences that are listed at most.
MAX_DIFFERENCES = 8
#: Sources that are listed at most.
MAX_SOURCES = 12


def to_text(forecast: Forecast) -> str:
    """Return the forecast as lines of at most 100 columns."""
    rows = [
        ("run", [run(forecast)]),
        ("", [time(forecast)] if forecast.timeline.left else []),
        ("memory", [verdict(forecast.plan)]),
        ("lr", [learning_rate(forecast.timeline)]),
        ("", list(filter(None, [rates_beside(forecast.config)]))),
        ("", [f"weight decay {weight_decay(forecast.timeline)}"] if forecast.timeline.weight_decay.changes else []),
        ("context", list(filter(None, [in_words(forecast.config)]))),
        ("batch", [batch_equation(forecast.config)]),
        ("", [batch_sizes(forecast.timeline)] if forecast.timeline.sizes.changes else []),
        ("", [sequence_lengths(forecast.timeline)] if forecast.timeline.lengths.changes else []),
        ("data", list(_data(forecast))),
        ("evaluation", [evaluation(forecast.timeline)]),
        ("saves", [saves(forecast.timeline)]),
        ("continues", list(continued(forecast))),
    ]
    names = forecast.config.file_names()
    lines = []
    for label, texts in rows:
        for number, text in enumerate(texts):
            parts = [text] if label == "data" else wrap(protect_names(text, names), WIDTH - LABEL)
            lines += [(label if not number + index else "").ljust(LABEL) + part for index, part in enumerate(parts)]
    return "\n".join(line.rstrip() for line in lines)


def run(forecast: Forecast) -> str:
    """Return the length of the run in one sentence."""
    left = forecast.timeline.left
    if not left:
        return f"nothing is left: the checkpoint is of iteration {forecast.timeline.start:,}"
    tokens = format_count(forecast.timeline.tokens_left)
    sizes = [size * forecast.timeline.tokens_per_sample for _, size in forecast.timeline.batches]
    each = f"{sizes[0]:,} tokens each" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,} tokens"
    if forecast.timeline.start:
        done = f"iterations {forecast.timeline.start + 1:,} to {forecast.timeline.iterations:,}"
        return f"{done}: {counted(left, 'iteration')} of {each}, {tokens} tokens"
    return f"{counted(left, 'iteration')} of {each}: {tokens} tokens"


def time(forecast: Forecast) -> str:
    """Return the planned time and, with a price, its cost."""
    plan, seconds = forecast.plan, forecast.seconds
    devices = f"{plan.layout.ranks} x {plan.target.device.name}"
    said = f"about {ranged(seconds, plan.time_error, format_duration)} on {devices} as planned"
    if forecast.evaluation_seconds > 0.005 * seconds:
        said += f", evaluation {format_percent(forecast.evaluation_seconds, seconds)} of it"
    return f"{said}{priced(plan, seconds)}; saving checkpoints is not counted"


def _data(forecast: Forecast) -> Iterator[str]:
    drawn = forecast.timeline.drawn
    if not drawn:
        yield "not known without the token files"
        return
    width = max(len("source"), *(len(each.name) for each in drawn[:MAX_SOURCES])) + 2
    read = "tokens left" if forecast.timeline.start else "tokens read"
    yield f"{'source':<{width}}{'share':>7}{read:>13}{'one pass':>11}{'epochs':>8}  first repeated"
    total = sum(map(forecast.timeline.tokens_left_of, drawn)) or 1
    for each in drawn[:MAX_SOURCES]:
        available, epochs, repeats = columns(each, forecast.timeline)
        left = forecast.timeline.tokens_left_of(each)
        numbers = f"{format_percent(left, total):>7}{format_count(left):>13}{available:>11}{epochs:>8}"
        yield f"{each.name:<{width}}{numbers}  {repeats}"
    if len(drawn) > MAX_SOURCES:
        yield f"and {len(drawn) - MAX_SOURCES} more"


def continued(forecast: Forecast) -> Iterator[str]:
    """Yield the checkpoint that the run continues from, and what differs from the run that wrote it."""
    if not forecast.continues:
        load = forecast.config.checkpoint.load
        if load and forecast.config.checkpoint.finetune:
            yield f"no: starts with the weights in {load}, at iteration 1"
        return
    left_out = forecast.timeline.position.left_out
    beside = f", after {counted(left_out, 'sample')} that were left out" if left_out else ""
    yield f"{forecast.continues}, iteration {forecast.timeline.start:,}{beside}"
    found = [
        f"{each.name} {shorten(each.values[0], 24)} -> {shorten(each.values[1], 24)}" for each in forecast.differences
    ]
    if found:
        yield f"differs from the run that wrote it: {listed(found, 'and', most=MAX_DIFFERENCES)}"
    else:
        yield "with the same settings as the run that wrote it"
