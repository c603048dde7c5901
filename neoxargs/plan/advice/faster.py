"""Suggest changes that would make a fitting run faster: work that it can skip or overlap, in order of step time."""

from __future__ import annotations

from collections.abc import Iterator

from neoxargs.facts.gradient_sum import gradient_sum
from neoxargs.plan.advice.smaller import MAX_SUGGESTIONS, Changes, Resolve, Suggestion, fitting
from neoxargs.plan.estimate import Plan
from neoxargs.plan.given.target import BF16_GENERATION

#: A change is suggested only if its step time relative to the present one is below this, because of the error.
NOTICEABLE = 0.98
#: Elements of `reduce_bucket_size` for fewer and larger messages, because each message between hosts has a latency.
LARGE_BUCKET = 500_000_000
#: What can be on the device again, if it has the memory.
OFFLOADED = ("zero_optimization.offload_param.device", "zero_optimization.offload_optimizer.device")


def suggest_faster(original: Plan, resolve: Resolve) -> list[Suggestion]:
    """Return single changes with which the run still fits and is noticeably faster, fastest first."""
    found = fitting(_levers(original), resolve, original)
    faster = [suggestion for suggestion in found if suggestion.cost < NOTICEABLE]
    return sorted(faster, key=lambda suggestion: suggestion.cost)[:MAX_SUGGESTIONS]


def _levers(plan: Plan) -> Iterator[Changes]:
    yield from _less_work(plan)
    for name in OFFLOADED:
        if plan.config.get(name) not in (None, "none"):
            yield {name: "none"}
    if plan.layout.data > 1 and not plan.config.parallel.pipe_parallel_size:
        yield from _overlapped(plan)


def _less_work(plan: Plan) -> Iterator[Changes]:
    """16 bits; less recomputation; compiled layers, or the rotation alone."""
    device = plan.target.device
    if plan.config.precision.precision == "fp32" and device.kind == "cuda" and device.generation >= BF16_GENERATION:
        yield {"precision": "bfloat16"}
    chosen = plan.config.recompute.checkpoint_activations
    if chosen:
        yield {"checkpoint_activations": False}
    if chosen is True:
        yield {"checkpoint_activations": "selective"}
    if not plan.config.fusion.compile_layers and device.kind == "cuda":
        yield {"compile_layers": True}
        if plan.config.embedding.pos_emb == "rotary" and not plan.config.fusion.rope_fusion:
            yield {"rope_fusion": True}


def _overlapped(plan: Plan) -> Iterator[Changes]:
    """Communication during computation; gradients reduced in large messages between hosts."""
    zero, hosts = plan.config.zero_optimization, len(plan.spec.resources.hosts)
    reduction = gradient_sum(plan.config)
    if zero.stage and reduction.way in ("ZeRO", "buckets") and not reduction.overlaps:
        yield {"zero_optimization.overlap_comm": True}
    if zero.stage in (1, 2) and zero.reduce_bucket_size < LARGE_BUCKET and hosts > 1:
        yield {"zero_optimization.reduce_bucket_size": LARGE_BUCKET}
