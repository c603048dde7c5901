"""Suggests changes to a configuration that does not fit: the smallest that fit, in order of step time.

A change is a set of overrides. Each is applied like `--set`, so all rules and checks run, and planned again. The global
batch size is preserved: a smaller micro batch comes with more gradient accumulation steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product

from neoxargs.base.problems import Problems
from neoxargs.base.record import Record
from neoxargs.config.config import Config
from neoxargs.facts.layout import Layout
from neoxargs.plan.estimate import Plan, make_plan
from neoxargs.plan.given.target import Target
from neoxargs.runs.run_spec import RunSpec

Changes = Mapping[str, object]
#: Resolves the configuration with changes; raises Problems.
Resolve = Callable[[Changes], RunSpec]
#: The most suggestions that are made.
MAX_SUGGESTIONS = 4
#: The most single changes that are combined.
MAX_COMBINED = 3


class Suggestion(Record):
    """A change with which the run fits, and its plan."""

    changes: Changes
    plan: Plan
    cost: float
    """Step time relative to the original's; below 1 if it is faster."""

    @property
    def overrides(self) -> list[str]:
        return overrides_of(self.changes)


def fitting(tried: Iterable[Changes], resolve: Resolve, original: Plan) -> list[Suggestion]:
    """Return those of the changes with which the run fits."""
    plans = ((changes, _try_changes(changes, resolve, original.target)) for changes in tried)
    return [_suggestion(changes, plan, original) for changes, plan in plans if plan and plan.fits]


def suggest_changes(original: Plan, resolve: Resolve) -> list[Suggestion]:
    """Return changes that make the plan fit, fastest first.

    This is a beam search: single changes, then combinations of the MAX_SUGGESTIONS that come nearest to fitting.
    """
    found: list[Suggestion] = []
    candidates: list[tuple[Changes, Plan]] = [({}, original)]
    for _ in range(MAX_COMBINED):
        candidates = list(_with_one_more_change(candidates, resolve, original.target))
        found = [_suggestion(changes, plan, original) for changes, plan in candidates if plan.fits]
        if found:
            break
        candidates = sorted(candidates, key=lambda pair: pair[1].fullest.peak / (pair[1].usable or 1))[:MAX_SUGGESTIONS]
    # Of suggestions that set the same keys, the first: smaller changes are tried before larger ones.
    kinds: dict[tuple[str, ...], Suggestion] = {}
    for suggestion in (*_tensor_and_pipeline(original, resolve), *found):
        kinds.setdefault(tuple(sorted(suggestion.changes)), suggestion)
    return sorted(kinds.values(), key=lambda each: (each.cost, len(each.changes)))[:MAX_SUGGESTIONS]


def _with_one_more_change(
    candidates: list[tuple[Changes, Plan]], resolve: Resolve, target: Target
) -> Iterator[tuple[Changes, Plan]]:
    """Every candidate with every further change, planned; combinations that a rule forbids are left out."""
    seen: set[tuple[str, ...]] = set()
    for before, plan in candidates:
        for further in _single_changes(plan.config):
            changes = {**before, **further}
            name = tuple(sorted(f"{key}={value}" for key, value in changes.items()))
            if name in seen:
                continue
            seen.add(name)
            if planned := _try_changes(changes, resolve, target):
                yield changes, planned


def _tensor_and_pipeline(original: Plan, resolve: Resolve) -> list[Suggestion]:
    """Return the fastest increase of both tensor and pipeline parallel sizes that fits, or [].

    The search above misses it for large models: neither size alone comes near to fitting.
    """
    for saving in _savings(original.config):
        tried = ({**sizes, **saving} for sizes in _tensor_pipeline_sizes(original.config))
        if found := fitting(tried, resolve, original):
            return [min(found, key=lambda suggestion: suggestion.cost)]
    return []


def _savings(config: Config) -> Iterator[Changes]:
    """No change, then recomputation and ZeRO-1, which save memory in any layout."""
    yield {}
    changes: dict[str, object] = {}
    if config.recompute.checkpoint_activations is not True:
        changes["checkpoint_activations"] = True
    if not config.zero_optimization.stage:
        changes["zero_optimization.stage"] = 1
    if changes:
        yield changes


def _try_changes(changes: Changes, resolve: Resolve, target: Target) -> Plan | None:
    """Return the plan with these changes, or None if a rule forbids them."""
    try:
        return make_plan(resolve(changes), target)
    except Problems:
        return None


def _single_changes(config: Config) -> Iterator[Changes]:
    yield from _smaller_batches(config)
    yield from _more_zero(config)
    yield from _more_parallel(config)
    yield from _offloaded(config)


def _smaller_batches(config: Config) -> Iterator[Changes]:
    """Micro batches of half, a quarter, ... the size; recomputed activations; smaller buckets."""
    micro, steps = config.batch.train_micro_batch_size_per_gpu, config.batch.gradient_accumulation_steps
    factor = 2
    # As many times more accumulation steps, so that the batch stays the same.
    while micro % factor == 0:
        yield _batch(micro // factor, steps * factor)
        factor *= 2
    recompute = config.recompute
    if not recompute.checkpoint_activations:
        yield {"checkpoint_activations": "selective"}
    if recompute.checkpoint_activations is not True:
        yield {"checkpoint_activations": True}
    elif not recompute.partition_activations and config.parallel.model_parallel_size > 1:
        yield {"partition_activations": True}
    bucket = config.zero_optimization.reduce_bucket_size
    if config.zero_optimization.stage and bucket > SMALL_BUCKET:
        yield {"zero_optimization.reduce_bucket_size": SMALL_BUCKET}


#: Elements of `reduce_bucket_size`; large enough for the full rate of a network.
SMALL_BUCKET = 200_000_000


def _more_zero(config: Config) -> Iterator[Changes]:
    # DeepSpeed's pipeline engine supports ZeRO 0 and 1 only.
    highest = 1 if config.parallel.pipe_parallel_size else 3
    for stage in range(config.zero_optimization.stage + 1, highest + 1):
        if Layout.of(config).with_same_weights > 1:
            yield {"zero_optimization.stage": stage}


#: Tokens of sequences from which on it is usual to divide them.
LONG = 16_384


def _more_parallel(config: Config) -> Iterator[Changes]:
    """Two, four or eight times the tensor or pipeline parallel size, with as many times fewer replicas.

    Of long sequences, also the context parallel size.
    """
    layout, steps = Layout.of(config), config.batch.gradient_accumulation_steps
    micro = config.batch.train_micro_batch_size_per_gpu
    for factor in (2, 4, 8):
        if layout.data % factor == 0:
            batch = _batch(micro, steps * factor)
            yield {"model_parallel_size": layout.tensor * factor, **batch}
            if config.shape.seq_length >= LONG:
                yield {"context_parallel_size": layout.context * factor, **batch}
            if config.shape.num_layers >= layout.pipe * factor and config.zero_optimization.stage < 2:
                yield {"pipe_parallel_size": layout.pipe * factor, **batch}


def _tensor_pipeline_sizes(config: Config) -> Iterator[Changes]:
    """Every combination of two, four or eight times both sizes; none with ZeRO-2 and 3, which exclude a pipeline."""
    layout, batch = Layout.of(config), config.batch
    if config.zero_optimization.stage > 1:
        return
    for tensor, pipe in product((2, 4, 8), repeat=2):
        if layout.data % (tensor * pipe) == 0 and config.shape.num_layers >= layout.pipe * pipe:
            sizes = {"model_parallel_size": layout.tensor * tensor, "pipe_parallel_size": layout.pipe * pipe}
            steps = batch.gradient_accumulation_steps * tensor * pipe
            yield {**sizes, **_batch(batch.train_micro_batch_size_per_gpu, steps)}


def _offloaded(config: Config) -> Iterator[Changes]:
    """Optimizer state, then weights, offloaded to host memory, which only the plain engine supports."""
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


def _suggestion(changes: Changes, plan: Plan, original: Plan) -> Suggestion:
    """Return the changes with which `original` becomes `plan`, without those to what the user has set already."""
    config = original.config
    needed = {key: value for key, value in changes.items() if not (config.is_set(key) and config.get(key) == value)}
    return Suggestion(needed, plan, plan.speed.step / original.speed.step)


def overrides_of(changes: Changes) -> list[str]:
    """Return the changes as values of --set."""
    return [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in changes.items()]
