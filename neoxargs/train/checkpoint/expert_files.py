"""The files of a checkpoint with the experts that data parallel ranks divide among them (`moe_expert_parallel_size`).

DeepSpeed writes the weights of the first data parallel rank only, and without ZeRO its optimizer state. Each expert
parallel rank therefore writes its experts into a file of its own, and DeepSpeed's files of weights have none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.distributed
from torch import nn

from neoxargs.train.checkpoint.rank_files import RankFiles
from neoxargs.train.deepspeed import interface
from neoxargs.train.deepspeed.optimizer_layout import checkpoint_files, optimizer_layout
from neoxargs.train.deepspeed.weight_names import named_weights
from neoxargs.train.parallel.layers import is_expert, shards_of


@dataclass(frozen=True)
class ExpertFile:
    """The file of this rank's experts, which the first of the ranks with the same experts writes."""

    name: str
    weights: dict[str, nn.Parameter]
    has_optimizer: bool
    """Whether the file also holds their optimizer state: without ZeRO, on all but the first expert parallel rank."""
    is_written: bool


def of(engine: interface.Engine) -> ExpertFile | None:
    """Return the file of this rank's experts; None if it has none, or if no other rank has other experts."""
    weights = {name: weight for name, weight in named_weights(engine.module).items() if is_expert(weight)}
    layout = optimizer_layout(engine) if weights else None
    if layout is None:
        return None
    shard = shards_of(next(iter(weights.values())))[-1]
    states, _ = checkpoint_files(engine, layout)
    return ExpertFile(
        f"expert_rank_{shard.rank:02d}_{states}",
        weights,
        has_optimizer=layout.kind == "whole" and shard.rank > 0,
        # Consecutive ranks hold different experts, so the first `size` ranks have each of them once.
        is_written=torch.distributed.get_rank(engine.data_parallel_group) < shard.size,
    )


def write(engine: interface.Engine, files: RankFiles, with_optimizer: bool) -> None:
    """Write this rank's experts if it is the first that has them."""
    own, layout = of(engine), optimizer_layout(engine)
    if own is None or layout is None or not own.is_written:
        return
    content: dict[str, Any] = {"module": {name: weight.detach() for name, weight in own.weights.items()}}
    if own.has_optimizer and with_optimizer:
        numbers = {piece.tensor for piece in layout.pieces if piece.name in own.weights}
        state = layout.optimizer.state_dict()
        of_experts = {number: entry for number, entry in state["state"].items() if number in numbers}
        content["optimizer"] = state | {"state": of_experts}
    files.save(content, files.part / own.name)
