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
from neoxargs.tools.plan.plan import Plan, make_plan
from neoxargs.tools.plan.target import Target

#: Resolves the configuration once more with these overrides; raises Problems.
Resolve = Callable[[list[str]], RunSpec]
Changes = Mapping[str, object]
#: How many are suggested.
MAX_SUGGESTIONS = 4
#: How many changes are combined where none helps alone.
MAX_COMBINED = 3


@dataclass(frozen=True)
class Suggestion:
    """A change that was planned and fits."""

    changes: Changes
    plan: Plan
    cost: float
    """Time of a step relative to the original's; below 1 where it becomes faster."""

    @property
    def overrides(self) -> list[str]:
        return [f"{key}={_as_yaml(value)}" for key, value in self.changes.items()]


def suggest_changes(original: Plan, resolve: Resolve) -> list[Suggestion]:
    """Changes that make the plan fit, by what they cost; single ones first, several together where none does."""
    found: list[Suggestion] = []
    kept: list[tuple[Changes, Plan]] = [({}, original)]
    for _ in range(MAX_COMBINED):
        kept = list(_with_one_more_change(kept, resolve, original.target))
        found = [_suggestion(changes, made, original) for changes, made in kept if made.fits]
        if found:
            break
        kept = sorted(kept, key=lambda pair: _fill(pair[1]))[:MAX_SUGGESTIONS]
    found = [*_tensor_and_pipeline(original, resolve), *found]
    cheapest = sorted(_smallest_of_each_kind(found), key=lambda suggestion: (suggestion.cost, len(suggestion.changes)))
    return cheapest[:MAX_SUGGESTIONS]


def _with_one_more_change(
    kept: list[tuple[Changes, Plan]], resolve: Resolve, target: Target
) -> Iterator[tuple[Changes, Plan]]:
    seen: set[tuple[str, ...]] = set()
    for before, made in kept:
        for more in _single_changes(made.config):
            changes = {**before, **more}
            name = tuple(sorted(f"{key}={value}" for key, value in changes.items()))
            if name in seen:
                continue
            seen.add(name)
            planned = _try_changes(changes, resolve, target)
            if planned:
                yield changes, planned


def _tensor_and_pipeline(original: Plan, resolve: Resolve) -> list[Suggestion]:
    """The fastest way of taking more tensor and more pipeline parallel ranks together; with less state if need be.

    A large model needs both, and single steps do not get there: neither is near to fitting by itself.
    """
    for lighter in _lighter(original.config):
        tried = [{**sizes, **lighter} for sizes in _tensor_pipeline_sizes(original.config)]
        made = [(changes, _try_changes(changes, resolve, original.target)) for changes in tried]
        found = [_suggestion(changes, planned, original) for changes, planned in made if planned and planned.fits]
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


def _try_changes(changes: Changes, resolve: Resolve, target: Target) -> Plan | None:
    try:
        return make_plan(resolve([f"{key}={_as_yaml(value)}" for key, value in changes.items()]), target)
    except Problems:
        return None  # a combination that a rule forbids


def _single_changes(config: Config) -> Iterator[Changes]:
    yield from _smaller_batches(config)
    yield from _more_zero(config)
    yield from _more_parallel(config)
    yield from _offloaded(config)


def _smaller_batches(config: Config) -> Iterator[Changes]:
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


def _tensor_pipeline_sizes(config: Config) -> Iterator[Changes]:
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


def _suggestion(changes: Changes, made: Plan, original: Plan) -> Suggestion:
    return Suggestion(changes, made, made.speed.step / original.speed.step)


def _smallest_of_each_kind(found: list[Suggestion]) -> list[Suggestion]:
    """Of suggestions that only differ in how far they go, the one that goes least far."""
    kinds: dict[tuple[str, ...], Suggestion] = {}
    for suggestion in found:
        kinds.setdefault(tuple(sorted(suggestion.changes)), suggestion)
    return list(kinds.values())


def _fill(made: Plan) -> float:
    return made.fullest.peak / (made.usable or 1)


def _as_yaml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
