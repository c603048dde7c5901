"""Which elements of which weights this rank's optimizer steps on.

DeepSpeed keeps a tensor per weight, or flat ones in which many weights follow each other and are cut anywhere (the
partitions of ZeRO). A list of pieces says the same of each, and is all that is needed to read one and write another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed
from torch import Tensor, nn
from torch.optim import Optimizer

from neoxargs.train.parallel.pipeline import named_weights


class Piece(NamedTuple):
    """Elements that lie next to each other both in a weight and in what the optimizer steps on; counted flat."""

    name: str
    tensor: int
    """Which of the optimizer's tensors, in the order of its `state_dict`."""
    start: int
    """The first element there."""
    begin: int
    """The first element in this tensor parallel rank's slice of the weight."""
    length: int


@dataclass(frozen=True)
class OptimizerLayout:
    """The optimizer inside DeepSpeed's (None in an engine that only computes), and what it steps on."""

    kind: str
    """whole: the weights themselves; copies: fp32 copies of them; zero: partitions of ZeRO-1 and 2; zero3."""
    optimizer: Any
    tensors: list[Tensor]
    pieces: list[Piece]


def optimizer_layout(engine: Any) -> OptimizerLayout | None:
    """Of a DeepSpeed engine on this rank; None where DeepSpeed wraps the optimizer in a way that is not known here."""
    from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer
    from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
    from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

    outer, names = engine.optimizer, {id(weight): name for name, weight in named_weights(engine.module).items()}
    if engine.basic_optimizer is None:
        return OptimizerLayout("whole", None, [], [])
    if isinstance(outer, Optimizer):
        weights = list(chain.from_iterable(group["params"] for group in outer.param_groups))
        return OptimizerLayout("whole", outer, weights, _of_weights(weights, names))
    if isinstance(outer, FP16_UnfusedOptimizer):
        copies = list(chain.from_iterable(outer.fp32_groups))
        return OptimizerLayout(
            "copies", outer.optimizer, copies, _of_weights(chain.from_iterable(outer.fp16_groups), names)
        )
    if isinstance(outer, DeepSpeedZeroOptimizer):
        return OptimizerLayout(
            "zero", outer.optimizer, list(outer.single_partition_of_fp32_groups), list(_of_flat_groups(outer, names))
        )
    if isinstance(outer, DeepSpeedZeroOptimizer_Stage3):
        flat = list(outer.fp32_partitioned_groups_flat)
        return OptimizerLayout("zero3", outer.optimizer, flat, list(_of_partitions(outer, names)))
    return None


def checkpoint_files(engine: Any, layout: OptimizerLayout) -> tuple[str, str]:
    """The files that this rank's engine writes its weights and its optimizer to, by name; without ZeRO they are one."""
    weights = Path(engine._get_ckpt_name("", "")).name
    return weights, Path(engine._get_zero_ckpt_name("", "")).name if layout.kind.startswith("zero") else weights


def _of_weights(weights: Iterable[nn.Parameter], names: dict[int, str]) -> list[Piece]:
    return [Piece(names[id(weight)], number, 0, 0, weight.numel()) for number, weight in enumerate(weights)]


def _of_flat_groups(zero: Any, names: dict[int, str]) -> Iterator[Piece]:
    """ZeRO-1 and 2: all weights of a group one after the other, cut into equal parts for the ranks."""
    for number, weights in enumerate(zero.round_robin_bit16_groups):
        size = zero.single_partition_of_fp32_groups[number].numel()
        mine = size * torch.distributed.get_rank(zero.real_dp_process_group[number])
        first = 0
        for weight in weights:
            start, end = max(first, mine), min(first + weight.numel(), mine + size)
            if start < end:
                yield Piece(names[id(weight)], number, start - mine, start - first, end - start)
            first += weight.numel()


def _of_partitions(zero: Any, names: dict[int, str]) -> Iterator[Piece]:
    """ZeRO-3: each weight cut into equal parts for the ranks, the last one filled up."""
    for number, weights in enumerate(zero.fp16_groups):
        rank = torch.distributed.get_rank(zero.sub_group_process_groups[number])
        start = 0
        for weight in weights:
            size = weight.ds_tensor.ds_numel
            length = min(size, weight.ds_numel - rank * size)
            if length > 0:
                yield Piece(names[id(weight)], number, start, rank * size, length)
            start += size
