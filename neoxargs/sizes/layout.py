"""The layout of a run: the ranks of every pipeline stage and replica, and the layers of every stage.

DeepSpeed and megatron-core number ranks in the same way: tensor parallel rank innermost, then data parallel rank, then
pipeline stage.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from neoxargs.sizes.kinds import block_name

if TYPE_CHECKING:  # at run time this would be a circular import, because the rules of `resolve` use this module
    from neoxargs.resolve.config import Config

#: Class names of the pipeline's layers before and after the blocks, which `pipe_partition_method: type:…` matches.
BEFORE, AFTER = ("TokenEmbedding", "PositionEmbedding"), ("FinalNorm", "OutputLayer")


def stages(pipe_parallel_size: int) -> int:
    """Return the number of pipeline stages; DeepSpeed's plain engine (0) has one."""
    return max(pipe_parallel_size, 1)


def ranks_of_replica(model_parallel_size: int, pipe_parallel_size: int) -> int:
    """Return the number of ranks of one replica of the model. A model_parallel_size of 0 means 1."""
    return max(model_parallel_size, 1) * stages(pipe_parallel_size)


class Layout(NamedTuple):
    """The sizes of tensor, pipeline and data parallelism."""

    tensor: int
    pipe: int
    """Number of pipeline stages; 1 without the pipeline engine."""
    data: int

    @classmethod
    def of(cls, config: Config) -> Layout:
        tensor, pipe = config.parallel.model_parallel_size, config.parallel.pipe_parallel_size
        return cls(tensor, stages(pipe), config.parallel.world_size // ranks_of_replica(tensor, pipe))

    @property
    def ranks(self) -> int:
        return self.tensor * self.pipe * self.data

    def group(self, stage: int, replica: int) -> range:
        """Return the tensor parallel group of one stage of one replica."""
        first = (stage * self.data + replica) * self.tensor
        return range(first, first + self.tensor)


def layers_of_stages(config: Config) -> list[range] | None:
    """Return the transformer layers of each stage, counted from 0.

    None if only DeepSpeed can tell: it balances `parameters`, and other `type:` patterns, on the model itself.
    """
    stages, layers = Layout.of(config).pipe, config.shape.num_layers
    method = config.parallel.pipe_partition_method.lower()
    if stages == 1:
        return [range(layers)]
    # `uniform` divides all layers of the pipeline, embeddings and output included; a stage may get few transformer
    # layers.
    if method == "uniform":
        bounds = _even(len(BEFORE) + layers + len(AFTER), stages)
        return [range(*(min(max(bound - len(BEFORE), 0), layers) for bound in pair)) for pair in bounds]
    if method.startswith("type:") and _counts_blocks_only(config, method.removeprefix("type:")):
        return [range(*pair) for pair in _even(layers, stages)]
    return None


def _even(items: int, parts: int) -> list[tuple[int, int]]:
    """Split items evenly as DeepSpeed does, and return the bounds: the first parts get the remainder, one item each."""
    size, remainder = divmod(items, parts)
    starts = [part * size + min(part, remainder) for part in range(parts + 1)]
    return list(pairwise(starts))


def pipeline_layers(config: Config) -> list[str]:
    """Return the class names of the pipeline's layers, in order."""
    return [*BEFORE, *(block_name(config, layer) for layer in range(config.shape.num_layers)), *AFTER]


def _counts_blocks_only(config: Config, pattern: str) -> bool:
    """Whether a pattern matches all blocks, and no other layer of the pipeline."""
    # DeepSpeed searches the pattern anywhere in the name of a class, and ignores case.
    matches = [bool(re.search(pattern, name.lower())) for name in pipeline_layers(config)]
    return matches == [False] * len(BEFORE) + [True] * config.shape.num_layers + [False] * len(AFTER)
