"""The layout of a run: the ranks of every pipeline stage and replica, and the layers of every stage.

DeepSpeed and megatron-core number ranks in the same way: tensor parallel rank innermost, then context and data parallel
rank, then pipeline stage.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

from neoxargs.config.config import Config
from neoxargs.facts.layer_kinds import block_name
from neoxargs.facts.model import has_own_output, is_reward_model

#: Class names of the pipeline's layers before and after the blocks, which `pipe_partition_method: type:…` matches. The
#: output of a tied embedding has the name of the embedding.
BEFORE, AFTER = ("TokenEmbedding", "PositionEmbedding"), ("FinalNorm", "OutputLayer")
#: The layer that no pattern counts: with learned positions or without, the embedding is one layer, as in GPT-NeoX.
NOT_COUNTED = "PositionEmbedding"


def stages(pipe_parallel_size: int) -> int:
    """Return the number of pipeline stages; DeepSpeed's plain engine (0) has one."""
    return max(pipe_parallel_size, 1)


def ranks_of_replica(model_parallel_size: int, pipe_parallel_size: int, context_parallel_size: int = 1) -> int:
    """Return the number of ranks that process a sample together. A model_parallel_size of 0 means 1."""
    return max(model_parallel_size, 1) * stages(pipe_parallel_size) * context_parallel_size


class Layout(NamedTuple):
    """The sizes of tensor, pipeline, data and context parallelism."""

    tensor: int
    pipe: int
    """Number of pipeline stages; 1 without the pipeline engine."""
    data: int
    """Number of replicas, which process different samples."""
    context: int = 1

    @classmethod
    def of(cls, config: Config) -> Layout:
        tensor, pipe = config.parallel.model_parallel_size, config.parallel.pipe_parallel_size
        context = config.parallel.context_parallel_size
        replicas = config.parallel.world_size // ranks_of_replica(tensor, pipe, context)
        return cls(tensor, stages(pipe), replicas, context)

    @property
    def ranks(self) -> int:
        return self.tensor * self.pipe * self.data * self.context

    @property
    def with_same_weights(self) -> int:
        """Number of ranks over which gradients are summed, and among which ZeRO partitions."""
        return self.data * self.context

    def group(self, stage: int, replica: int) -> range:
        """Return the ranks of one stage of one replica."""
        size = self.tensor * self.context
        first = (stage * self.data + replica) * size
        return range(first, first + size)


def tensor_ranks_together(size: int, slots: Iterable[int]) -> int:
    """Return the fewest ranks of a tensor parallel group that share a host: `size` if no group spans hosts.

    slots: the number of ranks of each host, in rank order.
    """
    fewest, end = size, 0
    for count in slots:
        start, end = end, end + count
        # Ranks of a group are adjacent, so only the first and the last group of a host can be cut.
        fewest = min(fewest, count, size - start % size, (end - 1) % size + 1)
    return fewest


def layers_of_stages(config: Config) -> list[range] | None:
    """Return the transformer layers of each stage, counted from 0.

    None with `parameters`, which DeepSpeed balances on the model itself.
    """
    stages, layers = Layout.of(config).pipe, config.shape.num_layers
    method = config.parallel.pipe_partition_method.lower()
    if stages == 1:
        return [range(layers)]
    if method == "uniform":
        return transformer_layers(_even(len(BEFORE) + layers + len(AFTER), stages), layers)
    if method.startswith("type:"):
        costs = [int(is_counted(name, method)) for name in pipeline_layers(config)]
        if costs == [0] * len(BEFORE) + [1] * layers + [0] * len(AFTER):  # the same bounds, in a fraction of the time
            return [range(*pair) for pair in pairwise(_even(layers, stages))]
        return transformer_layers(partition_balanced(tuple(costs), stages), layers)
    return None


def transformer_layers(bounds: list[int], layers: int) -> list[range]:
    """Return the transformer layers of each stage. bounds: of the stages, in layers of the pipeline.

    A stage may have few of them or none, because embeddings and output are layers of the pipeline too.
    """
    within = [min(max(bound - len(BEFORE), 0), layers) for bound in bounds]
    return [range(*pair) for pair in pairwise(within)]


def _even(items: int, parts: int) -> list[int]:
    """Return the bounds of even parts as DeepSpeed divides items: each of the first parts gets one of the remainder."""
    size, remainder = divmod(items, parts)
    return [part * size + min(part, remainder) for part in range(parts + 1)]


def pipeline_layers(config: Config) -> list[str]:
    """Return the class names of the pipeline's layers, in order."""
    norm, output = AFTER
    output = "RewardHead" if is_reward_model(config) else output if has_own_output(config) else BEFORE[0]
    return [*BEFORE, *(block_name(config, layer) for layer in range(config.shape.num_layers)), norm, output]


def is_counted(name: str, method: str) -> bool:
    """Whether `pipe_partition_method: type:…` counts the layers with this class name."""
    pattern = layer_pattern(method)
    return name != NOT_COUNTED and pattern is not None and bool(pattern.search(name))


def layer_pattern(method: str) -> re.Pattern[str] | None:
    """Return the expression of `type:…`, which DeepSpeed searches anywhere in the name of a class.

    None if the method has another form, or the expression is not valid. DeepSpeed reads it up to its first colon.
    """
    kind, _, pattern = method.lower().partition(":")
    try:
        return re.compile(pattern, re.IGNORECASE) if kind == "type" and pattern and ":" not in pattern else None
    except re.error:
        return None


@lru_cache(maxsize=16)
def partition_balanced(costs: tuple[int, ...], parts: int) -> list[int]:
    """Return the bounds of the parts of a list (`parts` + 1 indices), as DeepSpeed balances pipeline stages.

    Dynamic programming over the first i items in j parts: of all partitions, that with the least difference between its
    largest and smallest part; of equal ones, that with the shortest last part. The same as
    `deepspeed.runtime.utils.partition_balanced`, which needs torch.
    """
    items = len(costs)
    if items <= parts:
        return [min(part, items) for part in range(parts + 1)]
    sums = list(accumulate(costs, initial=0))
    unreachable = (float("inf"), float("inf"), float("inf"))
    best: dict[int, tuple[float, float, float]] = {0: (0.0, 0.0, float("inf"))}  # items -> spread, largest, smallest
    cuts: list[list[int]] = []
    for part in range(1, parts + 1):
        reached, cut = {}, [0] * (items + 1)
        for end in range(part, items + 1):
            chosen = unreachable
            for start in range(part - 1, end):
                _, largest, smallest = best.get(start, unreachable)
                size = sums[end] - sums[start]
                largest, smallest = max(largest, size), min(smallest, size)
                if largest - smallest <= chosen[0]:
                    chosen, cut[end] = (largest - smallest, largest, smallest), start
            reached[end] = chosen
        best = reached
        cuts.append(cut)
    bounds = [items]
    for cut in reversed(cuts):
        bounds.append(cut[bounds[-1]])
    return bounds[::-1]
