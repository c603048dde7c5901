"""The phases of `lr_schedule`: a list of `{style, until, from, to}`, as numbers of iterations and rates.

`until` is a length of facts/lengths.py. Between its ends, a phase has the curve of its style; the iteration `until` has
the rate `to`, as the last iteration of a warm-up has `lr`. After the last phase, the rate stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from neoxargs.base.problems import did_you_mean
from neoxargs.facts.length_units import UNITS, order_hint
from neoxargs.facts.lengths import Sizes, iterations
from neoxargs.facts.mistakes import Mistakes, refuse_each, wrong_keys

#: Style -> the share of the way from `to` to `from` that is left, of the share of the phase that has passed. These are
#: the decays of Megatron-LM's WSD (`megatron/core/optimizer_param_scheduler.py`).
LEFT: dict[str, Callable[[float], float]] = {
    "linear": lambda share: 1 - share,
    "cosine": lambda share: (math.cos(math.pi * share) + 1) / 2,
    "exponential": lambda share: 2 * 0.5**share - 1,
    "minus_sqrt": lambda share: 1 - math.sqrt(share),
}
CONSTANT, INVERSE = "constant", "inverse-square-root"
STYLES = (CONSTANT, *LEFT, INVERSE)
KEYS = ("style", "until", "from", "to")


class Phase(NamedTuple):
    """A part of the schedule, which ends with iteration `until`, counted from 0."""

    style: str
    until: int
    start: float
    end: float


def phases(listed: Sequence[Any], lr: float, sizes: Sizes) -> list[Phase]:
    """Return the phases of `lr_schedule`. Raises Mistakes with everything that is wrong."""
    refuse_each(listed, lambda given, number: _wrong(given, number == 1, number == len(listed), sizes))
    found: list[Phase] = []
    for number, given in enumerate(listed, 1):
        phase = _phase(given, found[-1] if found else None, lr, sizes)
        begin = found[-1].until if found else 0
        if phase.until > begin:
            found.append(phase)
        elif "until" in given:
            what = f"until ({phase.until:,} iterations) must be after the end of the phase before it ({begin:,})"
            raise Mistakes([(f"phase {number}", what, order_hint(given["until"]))])
        else:
            what = f"until ({begin:,} iterations) must be before the end of the run ({sizes.iterations:,}), where the "
            what += "last phase ends"
            raise Mistakes([(f"phase {number - 1}", what, "end it earlier, or increase train_iters")])
    return found


def rate(found: Sequence[Phase], iteration: int) -> float:
    """Return the rate of an iteration, counted from 0."""
    begin = 0
    for phase in found:
        if iteration <= phase.until:
            return _within(phase, begin, iteration)
        begin = phase.until
    return found[-1].end


def _within(phase: Phase, begin: int, iteration: int) -> float:
    if phase.style == INVERSE:
        return phase.start * math.sqrt(begin / iteration)
    if phase.style == CONSTANT:
        return phase.start
    return phase.end + (phase.start - phase.end) * LEFT[phase.style]((iteration - begin) / (phase.until - begin))


def _phase(given: Mapping[str, Any], before: Phase | None, lr: float, sizes: Sizes) -> Phase:
    begin = before.until if before else 0
    until = (iterations(given["until"], sizes) if "until" in given else None) or sizes.iterations
    style, start = given["style"], given.get("from", before.end if before else lr)
    if style == INVERSE:
        return Phase(style, until, start, start * math.sqrt(begin / until))
    return Phase(style, until, start, start if style == CONSTANT else given["to"])


def _wrong(given: Any, is_first: bool, is_last: bool, sizes: Sizes) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a phase by itself, and what to write instead."""
    yield from wrong_keys(given, KEYS, "phase", "{style: linear, until: 2000, from: 0, to: 3.0e-4}")
    if not isinstance(given, Mapping):
        return
    style = given.get("style")
    if style not in STYLES:
        wrong = "style is missing" if style is None else f"style ({style!r}) is not known"
        yield wrong, did_you_mean(str(style), STYLES) or f"write one of {', '.join(STYLES)}"
    if style == INVERSE and is_first:
        yield f"{style} continues a warm-up, so it cannot be the first phase", "put a linear phase before it"
    yield from _wrong_rates(given)
    if "until" in given and iterations(given["until"], sizes) is None:
        yield f"until ({given['until']!r}) is no length", f"write {UNITS}"
    if "until" not in given and not is_last:
        yield "until is missing", "only the last phase ends with the run by default"


def _wrong_rates(given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key in ("from", "to"):
        value = given.get(key, 0)
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            yield f"{key} ({value!r}) is no learning rate", "write a number of at least 0"
    style = given.get("style")
    if style in (CONSTANT, INVERSE) and "to" in given:
        yield f"a phase of style {style} has no end of its own (to)", "remove to"
    if style in LEFT and "to" not in given:
        yield "to is missing", "write the rate at the end of the phase"
