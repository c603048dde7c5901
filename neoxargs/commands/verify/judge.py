"""Compares what trials showed with what was promised."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from neoxargs.base.record import Record
from neoxargs.commands.verify.settings import Setting
from neoxargs.commands.verify.trials import Observed

Outcome = Literal["shown", "not shown", "contradicted"]
#: Runs with other values, each with the value.
Runs = Sequence[tuple[str, Observed]]


class Verdict(Record):
    """What the trials say of a setting, or of a property of the whole run."""

    name: str
    outcome: Outcome
    text: str
    """What was seen, with the numbers; or why it is not shown."""
    keys: tuple[str, ...] = ()
    """For a property, the parameters that it concerns."""


class Tolerance(NamedTuple):
    """Relative differences that rounding explains."""

    loss: float
    later: float
    """Of losses after the first three steps."""
    gradient: float
    """Of the gradient of single weights, relative to the norm of all."""
    weight: float
    """Of the final weights, relative to how far they moved."""


FP32 = Tolerance(loss=2e-6, later=1e-4, gradient=1e-4, weight=0.05)
HALF = Tolerance(loss=5e-3, later=2e-2, gradient=5e-2, weight=1.0)
#: Beginning of a property's name -> the relative difference of its numbers that rounding explains. What a token does
#: not see changes no bit; experts compute tokens together, so that others can change the last digits.
ROUNDING = {"a loss is the mean": 1e-5, "the gradient is the slope": 0.03, "the losses of a router": 1e-6}
WITH_EXPERTS = {"no token sees": 1e-6}
#: A weight whose gradient is smaller than this share of the norm of all is moved by rounding.
NOISE = 1e-5


def difference(one: Observed, other: Observed, allowed: Tolerance) -> str:
    """Return the first number in which two runs differ by more than rounding, as a clause; "" if there is none."""
    for step, (a, b) in enumerate(zip(one["losses"], other["losses"], strict=False), 1):
        limit = (allowed.loss if step <= 3 else allowed.later) * max(abs(b), 1.0)
        if not abs(a - b) <= limit:
            return f"the losses of step {step} are {a:.7g} and {b:.7g}"
        if step == 1 and (clause := _gradients(one["gradients"], other["gradients"], allowed.gradient)):
            return clause
        norms = one["norms"][step - 1], other["norms"][step - 1]
        if None not in norms and step <= 3 and not math.isclose(*norms, rel_tol=10 * allowed.gradient):
            return f"the gradient norms of step {step} are {norms[0]:.6g} and {norms[1]:.6g}"
    for (step, a), (_, b) in zip(_validation(one), _validation(other), strict=False):
        if not abs(a - b) <= allowed.later * max(abs(b), 1.0):
            return f"the validation losses after step {step} are {a:.7g} and {b:.7g}"
    return ""


def _validation(seen: Observed) -> list[tuple[int, float]]:
    # Not those of the test data, which are few: which of them count twice then depends on the number of ranks.
    return [(step, loss) for step, part, loss in seen.get("evaluated", ()) if part == "validation"]


def _gradients(ours: Mapping[str, float], theirs: Mapping[str, float], allowed: float) -> str:
    """Compare the norms of single weights' gradients."""
    total = math.sqrt(sum(value**2 for value in theirs.values()))
    for name in ours.keys() & theirs.keys():
        if not abs(ours[name] - theirs[name]) <= allowed * total:
            return f"the gradient norms of {name} in step 1 are {ours[name]:.6g} and {theirs[name]:.6g}"
    return ""


def weights_differ(one: Observed, reference: Observed, allowed: float) -> str:
    """Return the weight whose final values are farther apart than rounding explains, as a clause.

    one: has the distances from the weights of `reference`.
    """
    first = reference["gradients"]
    total = math.sqrt(sum(value**2 for value in first.values()))
    for name, distance in sorted(one["distances"].items()):
        moved = reference["moved"].get(name, [0.0])[0]
        if first.get(name, 0.0) > NOISE * total and not distance <= allowed * moved:
            return f"{name} is {distance:.3g} away, and moved by {moved:.3g}"
    return ""


def violates(name: str, one: float, other: float, has_experts: bool) -> bool:
    """Return whether the numbers of a property contradict it: if they must differ, by being equal."""
    if name.startswith("a token sees"):
        return one == other
    allowed = ROUNDING | (WITH_EXPERTS if has_experts else {})
    limit = next((limit for start, limit in allowed.items() if name.startswith(start)), 0.0)
    return not math.isclose(one, other, rel_tol=limit)


def setting(which: Setting, base: Observed, others: Sequence[Observed], is_half: bool) -> Verdict:
    """Judge a setting by runs with other values of it. base: the run as configured."""
    runs = list(zip(which.others, others, strict=False))
    good = [(_label(values), seen) for values, seen in runs if "refused" not in seen]
    if not good:
        return Verdict(which.name, "not shown", f"the runs with other values end: {runs[0][1]['refused'][0]}")
    if which.expected == "result":
        return Verdict(which.name, *_result(base, good))
    if which.expected == "rounding":
        return Verdict(which.name, *_rounding(base, good, HALF if is_half else FP32))
    return Verdict(which.name, *_nothing(base, good))


def _result(base: Observed, runs: Runs) -> tuple[Outcome, str]:
    """Judge a setting that changes the result: with one of its other values, the weights must differ."""
    for label, seen in runs:
        if seen["digest"] != base["digest"]:
            return "shown", f"{label}: {_largest(base, seen)}"
    labels = " or ".join(label for label, _ in runs)
    return "contradicted", f"with {labels} the weights are the same, bit for bit, after {len(base['losses'])} steps"


def _rounding(base: Observed, runs: Runs, allowed: Tolerance) -> tuple[Outcome, str]:
    """Judge a setting that changes no more than the last digits."""
    label, seen = runs[0]
    if clause := difference(seen, base, allowed):
        return "contradicted", f"{label} changes the result: {clause}"
    if seen["digest"] == base["digest"]:
        return "shown", f"{label}: the same weights, bit for bit"
    return "shown", f"{label}: the same within rounding ({_largest(base, seen)})"


def _nothing(base: Observed, runs: Runs) -> tuple[Outcome, str]:
    """Judge a setting that changes what a run writes, and not the result."""
    for label, seen in runs:
        digests = {seen["digest"], base["digest"]} - {None}
        if seen["losses"] != base["losses"] or len(digests) > 1:
            return "contradicted", f"{label} changes the result: {_largest(base, seen)}"
    outputs = ((label, _other_output(base, seen)) for label, seen in runs)
    if change := next((f"{label}: the same weights, {output}" for label, output in outputs if output), ""):
        return "shown", change
    return "not shown", f"{runs[0][0]}: the same weights, and nothing else that is observed differs"


def _label(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}: {_text(value)}" for name, value in values.items())


def _text(value: Any) -> str:
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def _largest(base: Observed, seen: Observed) -> str:
    """Return the largest difference of losses, as a clause."""
    if len(base["losses"]) != len(seen["losses"]):
        return f"{len(seen['losses'])} steps instead of {len(base['losses'])}"
    pairs = enumerate(zip(base["losses"], seen["losses"], strict=True), 1)
    step, (ours, other) = max(pairs, key=lambda pair: abs(pair[1][0] - pair[1][1]))
    return f"loss {other:.8g} instead of {ours:.8g} in step {step}" if ours != other else "other weights, equal losses"


def _other_output(base: Observed, seen: Observed) -> str:
    """Return what a run writes otherwise, as a clause."""
    if base["evaluated"] != seen["evaluated"]:
        return "other evaluations"
    if base["saved"] != seen["saved"]:
        return f"checkpoints of iterations {seen['saved']} instead of {base['saved']}"
    if base["files"] != seen["files"]:
        return f"{len(seen['files'])} files instead of {len(base['files'])}"
    if len(base["lines"]) != len(seen["lines"]):
        return f"{len(seen['lines'])} log lines instead of {len(base['lines'])}"
    return ""
