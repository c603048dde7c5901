"""Who sits where: the ranks of every pipeline stage and data parallel replica, and the layers of every stage.

DeepSpeed and megatron-core number ranks alike: neighbours share a tensor parallel group, then come the replicas of
the stage, then the next stage.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the rules of `resolve` count with this module
    from neoxargs.resolve.config import Config

#: The layers of the pipeline by the names of their classes, as `pipe_partition_method: type:…` sees them.
BEFORE, BLOCK, AFTER = ("TokenEmbedding", "PositionEmbedding"), "TransformerBlock", ("FinalNorm", "OutputLayer")


def stages(pipe_parallel_size: int) -> int:
    """Pipeline stages; DeepSpeed's plain engine (0) is one."""
    return max(pipe_parallel_size, 1)


def ranks_of_replica(model_parallel_size: int, pipe_parallel_size: int) -> int:
    """How many ranks hold one replica of the model between them. 0 tensor parallel ranks are read as 1."""
    return max(model_parallel_size, 1) * stages(pipe_parallel_size)


@dataclass(frozen=True)
class Layout:
    """How ranks divide the model."""

    tensor: int
    pipe: int
    """Stages; 1 for the plain engine."""
    data: int

    @classmethod
    def of(cls, config: Config) -> Layout:
        tensor, pipe = config.parallel.model_parallel_size, config.parallel.pipe_parallel_size
        return cls(tensor, stages(pipe), config.parallel.world_size // ranks_of_replica(tensor, pipe))

    @property
    def ranks(self) -> int:
        return self.tensor * self.pipe * self.data

    def group(self, stage: int, replica: int) -> range:
        """The ranks that hold one stage of one replica between them."""
        first = (stage * self.data + replica) * self.tensor
        return range(first, first + self.tensor)


def layers_of_stages(config: Config) -> list[range] | None:
    """The transformer layers of each stage, counted from 0; None where it takes DeepSpeed to tell."""
    stages, layers = Layout.of(config).pipe, config.shape.num_layers
    method = config.parallel.pipe_partition_method.lower()
    if stages == 1:
        return [range(layers)]
    if method == "uniform":
        bounds = _even(len(BEFORE) + layers + len(AFTER), stages)
        return [range(*(min(max(bound - len(BEFORE), 0), layers) for bound in pair)) for pair in bounds]
    if method.startswith("type:") and _counts_blocks_only(method.removeprefix("type:")):
        return [range(*pair) for pair in _even(layers, stages)]
    return None


def _even(items: int, parts: int) -> list[tuple[int, int]]:
    """As DeepSpeed deals equal items out: the first parts get one more where it does not come out even."""
    size, more = divmod(items, parts)
    starts = [part * size + min(part, more) for part in range(parts + 1)]
    return list(pairwise(starts))


def _counts_blocks_only(pattern: str) -> bool:
    found = [name for name in (*BEFORE, BLOCK, *AFTER) if re.search(pattern, name.lower())]
    return found == [BLOCK]
