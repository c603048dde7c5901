"""Layers of each pipeline stage, and the number of parameters on each of its tensor parallel ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from neoxargs.base.record import Record, replace
from neoxargs.config.config import Config
from neoxargs.facts.layout import Layout, layers_of_stages, partition_balanced, transformer_layers
from neoxargs.facts.model import has_own_output, weights_of_layers
from neoxargs.facts.trained import is_frozen
from neoxargs.plan.memory import weights
from neoxargs.plan.memory.weights import Weight


class Stage(Record):
    """One pipeline stage, with its sizes on each of its tensor parallel ranks."""

    index: int
    layers: range
    first: bool
    last: bool
    parts: dict[str, int]
    """Part of the model -> number of parameters on a rank."""
    largest: int
    """Number of elements of the largest weight, before tensor parallel sharding."""
    replicated: int
    """Number of trained parameters that are replicated on all tensor parallel ranks."""
    trained: int
    """Number of trained parameters: all, or only the adapters or the soft prompt beside a frozen model."""

    @cached_property
    def parameters(self) -> int:
        return sum(self.parts.values())

    @cached_property
    def of_experts(self) -> int:
        """Number of the parameters that belong to experts."""
        return self.parts.get(weights.EXPERTS, 0)


def pipeline_stages(config: Config, rows: int) -> list[Stage]:
    """Return all stages in order; one for the plain engine. rows: of the padded vocabulary."""
    layout, alike = Layout.of(config), dict[tuple[Any, ...], Stage]()
    stages = []
    for index, layers in enumerate(_bounds(config, rows)):
        kinds = tuple(weights.kind_of_block(config, layer) for layer in weights.first_uses(config, layers))
        key = (kinds, len(layers), index == 0, index == layout.pipe - 1)
        if key not in alike:
            alike[key] = _stage(config, rows, index, layers, layout)
        stages.append(replace(alike[key], index=index, layers=layers))
    return stages


def parameters_by_part(config: Config, rows: int) -> dict[str, int]:
    """Return part -> number of parameters of the whole model; replicated and tied weights count once."""
    layers = weights.blocks(config, range(config.shape.num_layers))
    weights_held = [*_embeddings(config, rows), *layers, weights.norm(config)]
    weights_held += weights.relative_table(config)
    weights_held += weights.beside_frozen_model(config, range(config.shape.num_layers), first=True)
    if has_own_output(config):
        weights_held.append(weights.output_layer(config, rows))
    return _sum_by_part(weights_held)


def _stage(config: Config, rows: int, index: int, layers: range, layout: Layout) -> Stage:
    first, last = index == 0, index == layout.pipe - 1
    weights_held = [*(_embeddings(config, rows) if first else []), *weights.blocks(config, layers)]
    weights_held += weights.relative_table(config) if layers else []
    if last:
        weights_held.append(weights.norm(config))
        if has_own_output(config) or not first:  # the first and the last stage each hold a tied table
            weights_held.append(weights.output_layer(config, rows))
    beside = weights.beside_frozen_model(config, layers, first)
    trained = beside if is_frozen(config) else weights_held
    largest = max((weight.numel for weight in weights_held), default=0)
    replicated = sum(weight.on_rank(1) for weight in trained if not weight.sharded)
    ranks = layout.tensor, config.parallel.moe_expert_parallel_size
    parts, count = _sum_by_part([*weights_held, *beside], *ranks), sum(_sum_by_part(trained, *ranks).values())
    return Stage(index, layers, first, last, parts, largest, replicated, count)


def _embeddings(config: Config, rows: int) -> list[Weight]:
    return [weights.token_table(config, rows), *weights.position_table(config)]


def _sum_by_part(weights_held: Iterable[Weight], tensor: int = 1, expert: int = 1) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for weight in weights_held:
        sums[weight.part] += weight.on_rank(tensor, expert)
    return dict(sums)


def _bounds(config: Config, rows: int) -> list[range]:
    """Return the transformer layers of each stage."""
    evenly_divided = layers_of_stages(config)
    if evenly_divided is not None:
        return evenly_divided
    bounds = partition_balanced(tuple(_numbers_of_weights(config, rows)), Layout.of(config).pipe)
    return transformer_layers(bounds, config.shape.num_layers)


def _numbers_of_weights(config: Config, rows: int) -> list[int]:
    """Return the number of weights of each layer of the pipeline, as DeepSpeed counts them: a tied table twice."""
    tensor, expert = Layout.of(config).tensor, config.parallel.moe_expert_parallel_size
    table = weights.token_table(config, rows).on_rank(tensor)
    positions = sum(weight.on_rank(tensor) for weight in weights.position_table(config))
    used = weights_of_layers(config.shape)
    layers = [weights.block(config, used.index(index)) for index in used]
    blocks = [sum(weight.on_rank(tensor, expert) for weight in layer) for layer in layers]
    return [table, positions, *blocks, weights.norm(config).numel, weights.output_layer(config, rows).on_rank(tensor)]
