"""Suggests changes that make a run that fits faster: what it can leave out or overlap, in order of step time."""

from __future__ import annotations

from collections.abc import Iterator

from neoxargs.tools.plan.advice import MAX_SUGGESTIONS, Changes, Resolve, Suggestion, suggestion_of, try_changes
from neoxargs.tools.plan.plan import Plan

#: Step time relative to the present one above which a change is not worth a line: the estimate is not that exact.
NOTICEABLE = 0.98
#: Elements of `reduce_bucket_size`: fewer and larger messages, each of which takes a time of its own between hosts.
LARGE_BUCKET = 500_000_000


def suggest_faster(original: Plan, resolve: Resolve) -> list[Suggestion]:
    """Return single changes with which the run still fits and is noticeably faster, fastest first."""
    tried = ((changes, try_changes(changes, resolve, original.target)) for changes in _levers(original))
    fitting = [suggestion_of(changes, plan, original) for changes, plan in tried if plan and plan.fits]
    faster = [suggestion for suggestion in fitting if suggestion.cost < NOTICEABLE]
    return sorted(faster, key=lambda suggestion: suggestion.cost)[:MAX_SUGGESTIONS]


def _levers(plan: Plan) -> Iterator[Changes]:
    """Less recomputation; gradients reduced during the backward pass, in large messages between hosts."""
    config, zero = plan.config, plan.config.zero_optimization
    chosen = config.recompute.checkpoint_activations
    if chosen:
        yield {"checkpoint_activations": False}
    if chosen is True:
        yield {"checkpoint_activations": "selective"}
    if plan.layout.data == 1 or config.parallel.pipe_parallel_size:
        return
    if (zero.stage in (1, 2) and not zero.overlap_comm) or (zero.stage == 3 and zero.overlap_comm is False):
        yield {"zero_optimization.overlap_comm": True}
    if zero.stage in (1, 2) and zero.reduce_bucket_size < LARGE_BUCKET and len(plan.spec.resources.hosts) > 1:
        yield {"zero_optimization.reduce_bucket_size": LARGE_BUCKET}
