"""What to write instead where a plan does not fit: the nearest changes that do, cheapest first.

A change is a set of overrides; it is put into the configuration as `--set` would put it and planned again, rules,
checks and all. The global batch stays what it is: what a micro batch loses, accumulation gains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from neoxargs.launch.run_spec import RunSpec
from neoxargs.problems import Problems
from neoxargs.resolve.config import Config
from neoxargs.sizes.layout import Layout
from neoxargs.tools.plan.plan import Plan, Target, plan

#: With changed values -> the resolved run; raises Problems.
Resolve = Callable[[list[str]], RunSpec]
Changes = Mapping[str, object]
#: How many are told.
MOST = 4
#: How many changes are put together where none helps alone.
TOGETHER = 3


@dataclass(frozen=True)
class Suggestion:
    """A change that was planned and fits."""

    changes: Changes
    plan: Plan
    cost: float
    """Time of a step against the original's; below 1 where it becomes faster."""

    @property
    def overrides(self) -> list[str]:
        return [f"{key}={_spelled(value)}" for key, value in self.changes.items()]


def suggestions(original: Plan, resolve: Resolve) -> list[Suggestion]:
    """Changes that make the plan fit, by what they cost; single ones first, several together where none does."""
    found: list[Suggestion] = []
    kept: list[tuple[Changes, Plan]] = [({}, original)]
    for _ in range(TOGETHER):
        kept = list(_next(kept, resolve, original.target))
        found = [_judged(changes, made, original) for changes, made in kept if made.fits]
        if found:
            break
        kept = sorted(kept, key=lambda pair: _excess(pair[1]))[:MOST]
    found = [*_both_ways(original, resolve), *found]
    return sorted(_nearest(found), key=lambda suggestion: (suggestion.cost, len(suggestion.changes)))[:MOST]


def _next(kept: list[tuple[Changes, Plan]], resolve: Resolve, target: Target) -> Iterator[tuple[Changes, Plan]]:
    seen: set[tuple[str, ...]] = set()
    for before, made in kept:
        for more in _moves(made.config):
            changes = {**before, **more}
            name = tuple(sorted(f"{key}={value}" for key, value in changes.items()))
            if name in seen:
                continue
            seen.add(name)
            planned = _planned(changes, resolve, target)
            if planned:
                yield changes, planned


def _both_ways(original: Plan, resolve: Resolve) -> list[Suggestion]:
    """The fastest way of taking more tensor and more pipeline parallel ranks together; with less state if need be.

    A large model needs both, and single steps do not get there: neither is near to fitting by itself.
    """
    for lighter in _lighter(original.config):
        tried = [{**sizes, **lighter} for sizes in _more_of_both(original.config)]
        made = [(changes, _planned(changes, resolve, original.target)) for changes in tried]
        found = [_judged(changes, planned, original) for changes, planned in made if planned and planned.fits]
        if found:
            return [min(found, key=lambda suggestion: suggestion.cost)]
    return []


def _lighter(config: Config) -> Iterator[Changes]:
    """Nothing; then what makes each rank's share smaller and leaves the layout alone."""
    yield {}
    changes: dict[str, object] = {}
    if not config.recompute.checkpoint_activations:
        changes["checkpoint_activations"] = True
    if not config.zero_optimization.stage:
        changes["zero_optimization.stage"] = 1
    if changes:
        yield changes


def _planned(changes: Changes, resolve: Resolve, target: Target) -> Plan | None:
    try:
        return plan(resolve([f"{key}={_spelled(value)}" for key, value in changes.items()]), target)
    except Problems:
        return None  # a combination that a rule forbids


def _moves(config: Config) -> Iterator[Changes]:
    yield from _less_at_once(config)
    yield from _more_zero(config)
    yield from _more_parallel(config)
    yield from _offloaded(config)


def _less_at_once(config: Config) -> Iterator[Changes]:
    """Micro batches of half, a quarter, ... the size; activations computed twice; smaller buckets."""
    micro, steps = config.batch.train_micro_batch_size_per_gpu, config.batch.gradient_accumulation_steps
    factor = 2
    while micro % factor == 0:
        yield _batch(micro // factor, steps * factor)
        factor *= 2
    recompute = config.recompute
    if not recompute.checkpoint_activations:
        yield {"checkpoint_activations": True}
    elif not recompute.partition_activations and config.parallel.model_parallel_size > 1:
        yield {"partition_activations": True}
    bucket = config.zero_optimization.reduce_bucket_size
    if config.zero_optimization.stage and bucket > SMALL_BUCKET:
        yield {"zero_optimization.reduce_bucket_size": SMALL_BUCKET}


#: Elements; large enough for a network's full rate.
SMALL_BUCKET = 200_000_000


def _more_zero(config: Config) -> Iterator[Changes]:
    highest = 1 if config.parallel.pipe_parallel_size else 3
    for stage in range(config.zero_optimization.stage + 1, highest + 1):
        if Layout.of(config).data > 1:
            yield {"zero_optimization.stage": stage}


def _more_parallel(config: Config) -> Iterator[Changes]:
    """Twice, four, eight times as many tensor or pipeline parallel ranks, taken from data parallelism."""
    layout, steps = Layout.of(config), config.batch.gradient_accumulation_steps
    micro = config.batch.train_micro_batch_size_per_gpu
    for factor in (2, 4, 8):
        if layout.data % factor == 0:
            batch = _batch(micro, steps * factor)
            yield {"model_parallel_size": layout.tensor * factor, **batch}
            if config.shape.num_layers >= layout.pipe * factor and config.zero_optimization.stage < 2:
                yield {"pipe_parallel_size": layout.pipe * factor, **batch}


def _more_of_both(config: Config) -> Iterator[Changes]:
    layout, batch = Layout.of(config), config.batch
    if config.zero_optimization.stage > 1:
        return
    for tensor, pipe in product((2, 4, 8), repeat=2):
        if layout.data % (tensor * pipe) == 0 and config.shape.num_layers >= layout.pipe * pipe:
            sizes = {"model_parallel_size": layout.tensor * tensor, "pipe_parallel_size": layout.pipe * pipe}
            steps = batch.gradient_accumulation_steps * tensor * pipe
            yield {**sizes, **_batch(batch.train_micro_batch_size_per_gpu, steps)}


def _offloaded(config: Config) -> Iterator[Changes]:
    """Optimizer state, then weights, to the host's memory; only the plain engine can."""
    if config.parallel.pipe_parallel_size > 1:
        return
    stage, plain = config.zero_optimization.stage, config.parallel.pipe_parallel_size == 0
    changes: dict[str, object] = {} if plain else {"pipe_parallel_size": 0}
    if stage < 2:
        changes["zero_optimization.stage"] = 2
    moved = {**changes, "zero_optimization.offload_optimizer.device": "cpu"}
    if config.offload_optimizer.device == "none":
        yield moved
    if config.offload_param.device == "none":
        yield {**moved, "zero_optimization.stage": 3, "zero_optimization.offload_param.device": "cpu"}


def _batch(micro: int, steps: int) -> dict[str, object]:
    return {"train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": steps}


def _judged(changes: Changes, made: Plan, original: Plan) -> Suggestion:
    return Suggestion(changes, made, made.speed.step / original.speed.step)


def _nearest(found: list[Suggestion]) -> list[Suggestion]:
    """Of suggestions that only differ in how far they go, the one that goes least far."""
    kinds: dict[tuple[str, ...], Suggestion] = {}
    for suggestion in found:
        kinds.setdefault(tuple(sorted(suggestion.changes)), suggestion)
    return list(kinds.values())


def _excess(made: Plan) -> float:
    return made.worst.peak / (made.usable or 1)


def _spelled(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
