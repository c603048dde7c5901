"""What each pipeline stage holds: which layers, and how many parameters on each of its tensor parallel ranks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise

from neoxargs.resolve.config import Config
from neoxargs.sizes.layout import AFTER, BEFORE, BLOCK, Layout, layers_of_stages
from neoxargs.sizes.model import weights_of_layers
from neoxargs.tools.plan.memory import weights
from neoxargs.tools.plan.memory.weights import Weight


@dataclass(frozen=True)
class Stage:
    """One pipeline stage as each of its tensor parallel ranks holds it."""

    index: int
    layers: range
    first: bool
    last: bool
    parts: dict[str, int]
    """Parameters by part of the model."""
    largest: int
    """Numbers in the largest tensor before it is sharded."""
    replicated: int
    """Of the parameters, those that every tensor parallel rank holds alike."""

    @property
    def parameters(self) -> int:
        return sum(self.parts.values())


def pipeline_stages(config: Config, rows: int) -> list[Stage]:
    """From the first to the last; one for the plain engine. rows: of the padded vocabulary."""
    layout = Layout.of(config)
    found = _bounds(config, rows)
    return [_stage(config, rows, index, layers, layout) for index, layers in enumerate(found)]


def parameters_by_part(config: Config, rows: int) -> dict[str, int]:
    """Parameters of the whole model by part; what is replicated or tied counts once."""
    layers = len(set(weights_of_layers(config.shape)))
    weights_held = [*_before(config, rows), *weights.block(config) * layers, weights.final_norm(config)]
    weights_held += weights.relative_table(config)
    if config.embedding.no_weight_tying:
        weights_held.append(Weight("output", rows * config.shape.hidden_size))
    return _sums(weights_held, 1)


def _stage(config: Config, rows: int, index: int, layers: range, layout: Layout) -> Stage:
    first, last = index == 0, index == layout.pipe - 1
    own = weights_of_layers(config.shape)[layers.start : layers.stop]  # layers that share keep theirs once a stage
    weights_held = [*(_before(config, rows) if first else []), *weights.block(config) * len(set(own))]
    weights_held += weights.relative_table(config) if own else []
    if last:
        weights_held.append(weights.final_norm(config))
        if config.embedding.no_weight_tying or not first:  # a tied table is on both the first and the last stage
            weights_held.append(Weight("output", rows * config.shape.hidden_size))
    largest = max((weight.numel for weight in weights_held), default=0)
    replicated = sum(weight.numel for weight in weights_held if not weight.sharded)
    return Stage(index, layers, first, last, _sums(weights_held, layout.tensor), largest, replicated)


def _before(config: Config, rows: int) -> list[Weight]:
    return [weights.token_table(config, rows), *weights.position_table(config)]


def _sums(weights_held: Iterable[Weight], tensor: int) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for weight in weights_held:
        sums[weight.part] += weight.on_rank(tensor)
    return dict(sums)


def _bounds(config: Config, rows: int) -> list[range]:
    known = layers_of_stages(config)
    if known is not None:
        return known
    costs = _costs(config, rows)
    bounds = partition_balanced(tuple(costs), Layout.of(config).pipe)
    layers = config.shape.num_layers
    within = [min(max(bound - len(BEFORE), 0), layers) for bound in bounds]
    return [range(*pair) for pair in pairwise(within)]


def _costs(config: Config, rows: int) -> list[int]:
    """What each layer of the pipeline weighs to `pipe_partition_method`."""
    method = config.parallel.pipe_partition_method.lower()
    names = [*BEFORE, *[BLOCK] * config.shape.num_layers, *AFTER]
    if method.startswith("type:"):
        pattern = method.removeprefix("type:")
        return [int(bool(re.search(pattern, name.lower()))) for name in names]
    tensor = Layout.of(config).tensor
    table = weights.token_table(config, rows).on_rank(tensor)
    positions = sum(weight.on_rank(tensor) for weight in weights.position_table(config))
    layer = sum(weight.on_rank(tensor) for weight in weights.block(config))
    blocks = [layer] * config.shape.num_layers
    return [table, positions, *blocks, weights.final_norm(config).numel, table]


@lru_cache(maxsize=16)
def partition_balanced(costs: tuple[int, ...], parts: int) -> list[int]:
    """Where each part of a list begins, and its end, as DeepSpeed balances stages.

    Of all cuts of the first i items into j parts, the one whose largest and smallest part differ least, found for
    every i and j from smaller ones; of equal cuts, the one with the shortest last part.
    """
    items = len(costs)
    if items <= parts:
        return [min(part, items) for part in range(parts + 1)]
    sums = list(accumulate(costs, initial=0))
    nothing = (float("inf"), float("inf"), float("inf"))
    best: dict[int, tuple[float, float, float]] = {0: (0.0, 0.0, float("inf"))}  # items -> spread, largest, smallest
    cuts: list[list[int]] = []
    for part in range(1, parts + 1):
        reached, cut = {}, [0] * (items + 1)
        for end in range(part, items + 1):
            found = nothing
            for start in range(part - 1, end):
                _, largest, smallest = best.get(start, nothing)
                size = sums[end] - sums[start]
                largest, smallest = max(largest, size), min(smallest, size)
                if largest - smallest <= found[0]:
                    found, cut[end] = (largest - smallest, largest, smallest), start
            reached[end] = found
        best = reached
        cuts.append(cut)
    bounds = [items]
    for cut in reversed(cuts):
        bounds.append(cut[bounds[-1]])
    return bounds[::-1]
