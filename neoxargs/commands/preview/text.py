"""The forecast of a run as one screen of text."""

from __future__ import annotations

from collections.abc import Iterator

from neoxargs.base.problems import listed
from neoxargs.base.text import (
    format_bytes,
    format_count,
    format_duration,
    format_number,
    format_percent,
    protect_names,
    shorten,
    wrap,
)
from neoxargs.commands.preview.forecast import Forecast
from neoxargs.facts.description import batch_equation, counted
from neoxargs.facts.lr_schedule import rates
from neoxargs.plan.output.wording import verdict
from neoxargs.runs.drawn import Drawn
from neoxargs.runs.summary import LABEL, WIDTH

#: Shares of the run at which the learning rate is listed.
SHARES = (0.25, 0.5, 0.75)
#: Differences that are listed at most.
MAX_DIFFERENCES = 8
#: Checkpoints that are listed at most.
MAX_SAVES = 4
#: Sources that are listed at most.
MAX_SOURCES = 12


def to_text(forecast: Forecast) -> str:
    """Return the forecast as lines of at most 100 columns."""
    rows = [
        ("run", [run(forecast)]),
        ("", [time(forecast)] if forecast.left else []),
        ("memory", [verdict(forecast.plan)]),
        ("lr", [learning_rate(forecast)]),
        ("batch", [batch_equation(forecast.config)]),
        ("data", list(_data(forecast))),
        ("evaluation", [evaluation(forecast)]),
        ("saves", [saves(forecast)]),
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
    left = forecast.left
    if not left:
        return f"nothing is left: the checkpoint is of iteration {forecast.start:,}"
    tokens = format_count(left * forecast.tokens_per_iteration)
    each = f"{forecast.tokens_per_iteration:,} tokens each"
    if forecast.start:
        done = f"iterations {forecast.start + 1:,} to {forecast.iterations:,}"
        return f"{done}: {counted(left, 'iteration')} of {each}, {tokens} tokens"
    return f"{counted(left, 'iteration')} of {each}: {tokens} tokens"


def time(forecast: Forecast) -> str:
    """Return the planned time and, with a price, its cost."""
    plan, seconds = forecast.plan, forecast.seconds
    said = f"about {format_duration(seconds)} on {plan.layout.ranks} x {plan.target.device.name} as planned"
    if forecast.evaluation_seconds > 0.005 * seconds:
        said += f", evaluation {format_percent(forecast.evaluation_seconds, seconds)} of it"
    if forecast.cost is not None:
        said += f", cost {format_number(forecast.cost)} at {forecast.price:g} per device and hour"
    return f"{said}; saving checkpoints is not counted"


def learning_rate(forecast: Forecast) -> str:
    """Return the learning rate at the beginning, its peak, in between and at the end."""
    rate, first, last = rates(forecast.config), forecast.start, forecast.iterations
    peak, _ = max(forecast.learning_rate, key=lambda point: point[1])
    between = (round(first + share * forecast.left) for share in SHARES)
    chosen = {iteration for iteration in (first + 1, peak, *between, last) if first < iteration <= last} or {last}
    return ", ".join(f"{rate(iteration - 1):.3g} in iteration {iteration:,}" for iteration in sorted(chosen))


def _data(forecast: Forecast) -> Iterator[str]:
    drawn = forecast.drawn
    if not drawn:
        yield "not known without the token files"
        return
    width = max(len("source"), *(len(each.source.prefix) for each in drawn[:MAX_SOURCES])) + 2
    yield f"{'source':<{width}}{'share':>7}{'tokens read':>13}{'one pass':>11}{'epochs':>8}  first repeated"
    total = sum(each.tokens for each in drawn) or 1
    for each in drawn[:MAX_SOURCES]:
        available, epochs, repeats = columns(each, forecast)
        share = format_percent(each.tokens, total)
        numbers = f"{share:>7}{format_count(each.tokens):>13}{available:>11}{epochs:>8}"
        yield f"{each.source.prefix:<{width}}{numbers}  {repeats}"
    if len(drawn) > MAX_SOURCES:
        yield f"and {len(drawn) - MAX_SOURCES} more"


def columns(drawn: Drawn, forecast: Forecast) -> tuple[str, str, str]:
    """Return the tokens of one pass, the number of passes, and where the second begins."""
    if drawn.available is None or drawn.epochs is None:
        return "unknown", "", "there is no such token file yet"
    repeats = drawn.repeats_in(forecast.iterations)
    when = "never" if repeats is None else f"in iteration {repeats:,}"
    epochs = "<0.01" if drawn.epochs < 0.01 else f"{drawn.epochs:,.{2 if drawn.epochs < 100 else 0}f}"
    return format_count(drawn.available), epochs, when


def evaluation(forecast: Forecast) -> str:
    """Return how often the run is evaluated."""
    done = forecast.evaluations
    tested = " and once on the test data" * forecast.tests
    if not done:
        return "none" if not tested else f"none but{tested.removeprefix(' and')}, at the end"
    batches = f"on {forecast.config.training.eval_iters:,} x {forecast.config.batch.train_batch_size:,} samples"
    if len(done) == 1:
        return f"once{tested}, at the end, {batches}"
    return f"{len(done):,} times, every {forecast.config.training.eval_interval:,} iterations{tested}, {batches}"


def saves(forecast: Forecast) -> str:
    """Return when checkpoints are saved, and the disk space that they take."""
    done, size = forecast.saves, forecast.checkpoint_bytes
    if not done:
        return "none is left" if forecast.config.checkpoint.save else "none: save is not set"
    listed_all = len(done) <= MAX_SAVES
    some = [f"{iteration:,}" for iteration in (done if listed_all else done[: MAX_SAVES - 1])]
    first = listed(some, "and") if listed_all else f"{', '.join(some)}, ... {done[-1]:,}"
    text = f"{counted(len(done), 'checkpoint')} in {forecast.config.checkpoint.save}, after iteration {first}"
    if not size:
        return text + "; a size is not known without the vocabulary"
    kept = forecast.config.checkpoint.keep_last_n_checkpoints
    removed = f", of which the last {kept} are kept" if kept and kept < len(done) else ""
    if len(done) == 1:
        return f"{text}: {format_bytes(size)}"
    return f"{text}{removed}: {format_bytes(size)} each, at most {format_bytes(forecast.disk_bytes)} on disk"


def continued(forecast: Forecast) -> Iterator[str]:
    """Yield the checkpoint that the run continues from, and what differs from the run that wrote it."""
    if not forecast.continues:
        load = forecast.config.checkpoint.load
        if load and forecast.config.checkpoint.finetune:
            yield f"no: starts with the weights in {load}, at iteration 1"
        return
    yield f"{forecast.continues}, iteration {forecast.start:,}"
    found = [
        f"{each.name} {shorten(each.values[0], 24)} -> {shorten(each.values[1], 24)}" for each in forecast.differences
    ]
    if found:
        yield f"differs from the run that wrote it: {listed(found, 'and', most=MAX_DIFFERENCES)}"
    else:
        yield "with the same settings as the run that wrote it"
