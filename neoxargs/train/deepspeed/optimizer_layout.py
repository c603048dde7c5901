"""List the elements of weights that this rank's optimizer updates.

DeepSpeed keeps one tensor per weight, or flat tensors of many concatenated weights that are cut at any element (ZeRO's
partitions). A list of pieces describes both, and suffices to read one kind and write another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed
from torch import Tensor, nn
from torch.optim import Optimizer

from neoxargs.train.deepspeed import interface
from neoxargs.train.deepspeed.weight_names import named_weights


class Piece(NamedTuple):
    """Elements that are contiguous both in a weight and in a tensor of the optimizer; offsets count flat elements."""

    name: str
    """Name of the weight."""
    tensor: int
    """Index of the tensor among those of the optimizer, in the order of its `state_dict`."""
    start: int
    """Offset in the optimizer's tensor."""
    begin: int
    """Offset in this tensor parallel rank's slice of the weight."""
    length: int


@dataclass(frozen=True)
class OptimizerLayout:
    """The optimizer that DeepSpeed wraps, and the tensors it updates."""

    kind: str
    """What the optimizer updates. `whole`: the weights themselves; `copies`: fp32 copies of the weights; `zero`: the
    fp32 partitions of ZeRO-1 and ZeRO-2; `zero-bf16`: those of the optimizer that accumulates bf16 gradients in fp32;
    `zero3`: those of ZeRO-3. Checkpoints store this value."""
    optimizer: Any
    """None in an engine without an optimizer."""
    tensors: list[Tensor]
    pieces: list[Piece]


def optimizer_layout(engine: interface.Engine) -> OptimizerLayout | None:
    """Return the layout of a DeepSpeed engine's optimizer on this rank; None if its wrapper class is not supported."""
    outer, names = engine.optimizer, {id(weight): name for name, weight in named_weights(engine.module).items()}
    if engine.basic_optimizer is None:
        return OptimizerLayout("whole", None, [], [])
    # Without a wrapper of DeepSpeed: fp32.
    if isinstance(outer, Optimizer):
        weights = list(chain.from_iterable(group["params"] for group in outer.param_groups))
        return OptimizerLayout("whole", outer, weights, _of_weights(weights, names))
    if isinstance(outer, interface.Fp16):
        weights = list(chain.from_iterable(outer.fp16_groups))
        copies = list(chain.from_iterable(outer.fp32_groups))
        return OptimizerLayout("copies", outer.optimizer, copies, _of_weights(weights, names))
    if isinstance(outer, interface.Zero12 | interface.Bf16):
        if isinstance(outer, interface.Zero12):
            # ZeRO may reorder the weights of a group (`round_robin_gradients`): this has the order of the flat tensor.
            kind, groups, flat = "zero", outer.round_robin_bit16_groups, list(outer.single_partition_of_fp32_groups)
        else:
            kind, groups, flat = "zero-bf16", outer.bf16_groups, list(outer.fp32_groups_flat_partition)
        return OptimizerLayout(kind, outer.optimizer, flat, list(_of_flat_groups(outer, groups, flat, names)))
    if isinstance(outer, interface.Zero3):
        flat = list(outer.fp32_partitioned_groups_flat)
        return OptimizerLayout("zero3", outer.optimizer, flat, list(_of_partitions(outer, names)))
    return None


def checkpoint_files(engine: interface.Engine, layout: OptimizerLayout) -> tuple[str, str]:
    """Return the names of the files for this rank's weights and optimizer state; without ZeRO they are the same."""
    weights = Path(engine._get_ckpt_name("", "")).name
    return weights, Path(engine._get_zero_ckpt_name("", "")).name if layout.kind.startswith("zero") else weights


def _of_weights(weights: Iterable[nn.Parameter], names: dict[int, str]) -> list[Piece]:
    # A stage that trains nothing has a number that is none of the weights.
    return [
        Piece(names[id(weight)], number, 0, 0, weight.numel())
        for number, weight in enumerate(weights)
        if id(weight) in names
    ]


def _of_flat_groups(
    zero: interface.Zero12 | interface.Bf16,
    groups: Sequence[Sequence[nn.Parameter]],
    partitions: Sequence[Tensor],
    names: dict[int, str],
) -> Iterator[Piece]:
    """Yield the pieces of ZeRO-1 and ZeRO-2: the weights of a group, concatenated and cut into equal partitions."""
    for number, weights in enumerate(groups):
        size = partitions[number].numel()
        # The group's own ranks: experts are partitioned over fewer ranks than the other weights.
        partition = size * torch.distributed.get_rank(zero.real_dp_process_group[number])
        first = 0
        for weight in weights:
            start, end = max(first, partition), min(first + weight.numel(), partition + size)
            if start < end and id(weight) in names:
                yield Piece(names[id(weight)], number, start - partition, start - first, end - start)
            first += weight.numel()


def _of_partitions(zero: interface.Zero3, names: dict[int, str]) -> Iterator[Piece]:
    """Yield the pieces of ZeRO-3: each weight is cut into equal partitions, of which the last one is padded."""
    for number, weights in enumerate(zero.fp16_groups):
        rank = torch.distributed.get_rank(zero.sub_group_process_groups[number])
        start = 0
        for weight in weights:
            # Elements of a rank's partition with padding, the same on all ranks.
            size = weight.ds_tensor.ds_numel
            length = min(size, weight.ds_numel - rank * size)
            if length > 0:
                yield Piece(names[id(weight)], number, start, rank * size, length)
            start += size
