"""The result of a search as text, as JSON, and as the file of a layout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from neoxargs.base.text import format_bytes, format_duration, format_number, format_percent, wrap
from neoxargs.plan.given.errors import Interval
from neoxargs.plan.output.wording import block
from neoxargs.plan.search.search import Found, LeftOut, Result
from neoxargs.plan.search.subject import Subject
from neoxargs.plan.time.speed import Speed
from neoxargs.runs.summary import LABEL, WIDTH

#: The most layouts of the front that are listed.
MOST_LISTED = 12
#: The layouts that are explained in a sentence each.
EXPLAINED = 3
#: Component of the step time -> what the ranks do meanwhile. Components below this share are not mentioned.
MEANWHILE = {
    "bubble": "waiting for other pipeline stages",
    "tensor": "communicating with tensor parallel ranks",
    "pipe": "sending activations between stages",
    "data": "reducing gradients or gathering weights",
    "experts": "exchanging tokens with the ranks of their experts",
    "context": "exchanging positions and heads in attention",
    "optimizer": "updating weights",
    "lost": "lost besides",
}
NOTICEABLE = 0.02


def to_text(result: Result, subject: Subject, left_out: bool, usage: Sequence[str]) -> str:
    """Return the lines that the command prints. usage: how to use the file that the fastest layout was written to."""
    best = result.front[:EXPLAINED]
    rows = [("search", list(_searched(result, subject))), ("front", list(_front(result)))]
    rows += [("fastest" if not index else "", list(_explained(found))) for index, found in enumerate(best)]
    rows += [("left out", list(_left_out(result, left_out)))]
    rows.append(("written", list(usage)))
    return "\n\n".join(block(label, lines) for label, lines in rows if lines)


def fewest(result: Result, subject: Subject) -> str:
    """Return the answer of --fewest: the smallest number of GPUs tried, and the fastest layout that fits on them."""
    needed = f"{result.devices:,} x {subject.target.device.name}"
    if not result.fitting:
        none = f"no layout fits on any number tried, up to {needed}; set --gpus N to try up to N GPUs"
        return block("fewest", [none])
    answer = f"{needed} is the smallest number tried on which a layout fits; "
    tried = "numbers tried: those that divide one host equally, then 2, 3, 4, 6, 8, 10, 12, 15, ... whole hosts"
    return block("fewest", [f"{answer}the fastest is {result.front[0].layout}", tried])


def counts(result: Result) -> str:
    """How many layouts were planned, fit and do not. Each layout is counted once."""
    if not result.planned:
        return f"all {len(result.left_out):,} layouts are impossible"
    fit = f"{len(result.fitting):,} fit" if result.fitting else "none fits"
    return f"{result.planned:,} layouts planned, {fit}, {sum(left.too_large for left in result.left_out):,} too large"


def _searched(result: Result, subject: Subject) -> Iterator[str]:
    yield f"{result.devices:,} x {subject.target.device.name}, {subject.batch}: {counts(result)}"
    yield from subject.assumed
    if result.planned and result.offloaded and subject.assumed_host_memory:
        yield subject.assumed_host_memory


def _front(result: Result) -> Iterator[str]:
    """A table of the layouts for which no other is both faster and smaller."""
    front = result.front
    if not front:
        return
    cost = "" if front[0].cost is None else f"{'cost':>10}"
    yield f"{'step':>9}{'memory':>11}{'TFLOP/s':>9}{'tokens/s':>12}{cost}  layout"
    for found in front[:MOST_LISTED]:
        speed = found.plan.speed
        cost = "" if found.cost is None else f"{format_number(found.cost):>10}"
        yield (
            f"{format_duration(found.seconds):>9}{format_bytes(found.memory):>11}"
            f"{format_number(speed.tflops_per_device):>9}{speed.tokens_per_second:>12,.0f}{cost}  {found.layout}"
        )
    if len(front) > MOST_LISTED:
        yield f"... {len(front)} layouts in total, in order of step time; --json lists all"
    yield from wrap(indistinct(result), WIDTH - LABEL)
    if front[0].cost is not None:
        yield f"cost: of the whole run, at {front[0].plan.target.price:g} per device and hour"


def indistinct(result: Result) -> str:
    """Which layouts cannot be told apart from the fastest."""
    alike = sum(map(result.as_fast, result.front[:MOST_LISTED]))
    error = 100 * (result.front[0].plan.target.assumed.error_layouts - 1)
    which = f"the first {alike} cannot be told apart by their step times" if alike > 1 else "the first is the fastest"
    return f"{which}: the difference between two layouts has an error of about {error:.0f} %"


def _explained(found: Found) -> Iterator[str]:
    yield str(found.layout)
    yield from wrap(f"{_shares(found.plan.speed)}; {_memory(found)}", WIDTH - LABEL)


def _shares(speed: Speed) -> str:
    """What a rank does during a step, the largest component first."""
    shares = {name: getattr(speed, name) / speed.step for name in MEANWHILE}
    listed = sorted((name for name in shares if shares[name] >= NOTICEABLE), key=lambda name: -shares[name])
    rest = [f"{format_percent(shares[name], 1)} {MEANWHILE[name]}" for name in listed]
    return ", ".join([f"{format_percent(speed.compute, speed.step)} of a step is computation", *rest])


def _memory(found: Found) -> str:
    rank, plan = found.plan.fullest, found.plan
    parts = rank.phases[rank.peak_phase]
    largest = max(parts, key=lambda part: parts[part])
    share = format_percent(rank.peak, plan.usable or rank.peak)
    host = f"; a host needs {format_bytes(plan.host_peak)}" if found.layout.division.offload else ""
    return f"{share} of the usable memory is needed (largest part: {largest}, {format_bytes(parts[largest])}){host}"


def _left_out(result: Result, listed: bool) -> Iterator[str]:
    """How many layouts were left out, or which and why."""
    if not listed and not result.planned:
        yield from (f"{times:,} {why}" for why, times in Counter(left.why for left in result.left_out).most_common())
    elif not listed:
        too_large = sum(left.too_large for left in result.left_out)
        forbidden = len(result.left_out) - too_large
        yield f"too much memory: {too_large:,}; impossible: {forbidden:,}"
        yield "--left-out lists these layouts with the reasons. Variants that need even more memory were not evaluated."
    else:
        yield from _listed(result)


def _listed(result: Result) -> Iterator[str]:
    groups: dict[str, list[LeftOut]] = {}
    for left in sorted(result.left_out, key=lambda left: left.too_large):
        groups.setdefault(left.why, []).append(left)
    for why, members in groups.items():
        yield f"too much memory {why}:" if members[0].too_large else f"{why}:"
        for left in members:
            size = f"{format_bytes(left.needs):>10}" if left.needs is not None else ""
            yield f"{size}  {left.layout}"


def to_json(result: Result, subject: Subject) -> dict[str, Any]:
    """Return all that was found. Sizes in bytes, times in seconds."""
    front = {id(found) for found in result.front}
    return {
        "ok": bool(result.fitting),
        "devices": result.devices,
        "planned": result.planned,
        "device": subject.target.device.name,
        "samples": subject.start.samples,
        "host_memory": {"bytes": subject.host_memory, "assumed": bool(subject.assumed_host_memory)},
        "assumptions": subject.assumed,
        "layouts": [
            _as_json(found, id(found) in front, result.as_fast(found))
            for found in sorted(result.fitting, key=lambda f: f.seconds)
        ],
        "left_out": [{"layout": str(left.layout), "reason": left.reason} for left in result.left_out],
    }


def _as_json(found: Found, on_front: bool, as_fast: bool) -> dict[str, Any]:
    speed = found.plan.speed
    return {
        "set": dict(found.layout.changes()),
        "front": on_front,
        "step": found.seconds,
        "as_fast": as_fast,
        "interval": {
            "step": Interval.of(found.seconds, found.plan.time_error),
            "peak": Interval.of(found.memory, found.plan.memory_error),
        },
        "peak": found.memory,
        "host_peak": found.plan.host_peak,
        "cost": found.cost,
        "tokens_per_second": speed.tokens_per_second,
        "tflops_per_device": speed.tflops_per_device,
        "shares": {name: getattr(speed, name) / speed.step for name in ("compute", *MEANWHILE)},
    }
