"""Loading a checkpoint with another layout: every rank takes its shard of each weight and optimizer state by name.

Any sizes of tensor, pipeline, expert and data parallelism, any ZeRO stage and any precision convert to any others. What
does not depend on the layout (fp32 weights, Adam's moments, the schedule, the sample counter) is restored exactly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn

from neoxargs.base.problems import Problem, Problems
from neoxargs.facts.model import REWARD_HEAD
from neoxargs.train.checkpoint import inventory
from neoxargs.train.checkpoint.slices import Slice
from neoxargs.train.checkpoint.weights_by_name import (
    COMPARE_CONFIG,
    Kind,
    SavedWeights,
    WeightsByRank,
    not_convertible,
    saved_layout,
)
from neoxargs.train.deepspeed import interface, swap
from neoxargs.train.deepspeed.buckets import DIVIDED_FROM
from neoxargs.train.deepspeed.optimizer_layout import OptimizerLayout, Piece, optimizer_layout
from neoxargs.train.deepspeed.weight_names import named_weights
from neoxargs.train.parallel.layers import shards_of, unsharded_shape
from neoxargs.train.process.collectives import of_all_ranks

#: Weights with one row per token. Their row count is padded to a multiple that depends on the layout, with zeros.
VOCABULARY_WEIGHTS = ("embedding.word_embeddings.weight", "output.weight")
#: Attributes of DeepSpeed's dynamic loss scale.
LOSS_SCALE_STATE = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")
#: Entries of the optimizer's parameter groups that a learning rate schedule changes.
SCHEDULED = ("lr", "betas", "momentum")


def load(
    engine: interface.Engine,
    folder: Path,
    with_optimizer: bool,
    optional: Collection[str] = (),
    only: Collection[str] | None = None,
) -> dict[str, Any]:
    """Fill a DeepSpeed engine from a checkpoint of any layout. Collective: every rank calls it.

    with_optimizer: restore the optimizer state and the schedule too. optional, only: as of `load_weights`.
    Returns what DeepSpeed's `load_checkpoint` returns as client state. Raises Problems if the checkpoint does not fit.
    """
    saved = SavedWeights(folder, inventory.read_together(folder))
    load_weights(engine, saved, with_optimizer, optional, only)
    if with_optimizer:
        restore_counters(engine, saved, saved.common)
    return saved.common


def load_weights(
    engine: interface.Engine,
    saved: WeightsByRank,
    with_optimizer: bool,
    optional: Collection[str] = (),
    only: Collection[str] | None = None,
) -> None:
    """Fill a DeepSpeed engine's weights and optimizer states. Collective: every rank calls it.

    optional: weights that keep their values if the checkpoint does not have them. only: the weights to fill, of all
    ranks; the others keep their values. Raises Problems if the checkpoint does not fit.
    """
    layout = optimizer_layout(engine)
    problems = list(_mismatches(engine, saved, layout, with_optimizer, optional, only))
    if problems:
        raise Problems(problems)
    assert layout is not None
    weights = {
        name: weight
        for name, weight in named_weights(engine.module).items()
        if name in saved.slices and (only is None or name in only)
    }
    with torch.no_grad():
        if layout.kind == "zero3":
            _fill_partitions(engine.optimizer, weights, saved, layout, with_optimizer)
        else:
            for name, weight in weights.items():
                pieces = [piece for piece in layout.pieces if piece.name == name]
                _Loader(saved, layout, name, weight, pieces).load(with_optimizer)


def _fill_partitions(
    zero: interface.Zero3,
    weights: dict[str, nn.Parameter],
    saved: WeightsByRank,
    layout: OptimizerLayout,
    with_optimizer: bool,
) -> None:
    """Fill ZeRO-3's fp32 partitions, from which it derives the weights, with one group at a time in memory.

    Frozen weights have no fp32 partition.
    """
    # Frees the weights that ZeRO-3 keeps gathered (small ones); the epilogue gathers them again from their new
    # partitions.
    zero.checkpoint_event_prologue()
    for name, weight in weights.items():
        if not weight.requires_grad:
            _Loader(saved, layout, name, weight, []).load_partition()
    for group in range(len(layout.tensors)):
        pieces = [piece for piece in layout.pieces if piece.tensor == group and piece.name in weights]
        with swap.in_memory(zero, group):
            for name in dict.fromkeys(piece.name for piece in pieces):
                parts = [piece for piece in pieces if piece.name == name]
                _Loader(saved, layout, name, weights[name], parts).load(with_optimizer)
    zero.checkpoint_event_epilogue()


class _Loader:
    """Fills one weight and its optimizer states with what this rank has of them."""

    def __init__(
        self,
        saved: WeightsByRank,
        layout: OptimizerLayout,
        name: str,
        weight: nn.Parameter,
        pieces: list[Piece],
    ) -> None:
        """Raises Problems if the checkpoint's weight has another shape."""
        self.saved, self.layout, self.name, self.weight, self.pieces = saved, layout, name, weight, pieces
        self.own = Slice(unsharded_shape(weight) or [1], shards_of(weight))
        theirs, ours = saved.shape(name) or [1], list(self.own.full)
        # The checkpoint's vocabulary may be padded to another number of rows.
        if theirs[1:] != ours[1:] or (theirs[:1] != ours[:1] and name not in VOCABULARY_WEIGHTS):
            found, expected = (" x ".join(map(str, shape)) for shape in (theirs, ours))
            what = f"load ({saved.folder}): {name} has shape {found} in the checkpoint, but this run expects {expected}"
            raise Problems(Problem(what, hint=COMPARE_CONFIG, id="checkpoint-weight-shape", about=("load",)))

    def load(self, with_optimizer: bool) -> None:
        if self.layout.kind != "zero3":  # under ZeRO-3 the weight itself is empty
            own = self._elements(0, self.weight.numel(), Kind("", with_optimizer, unless=self.weight.dtype))
            self.weight.data.copy_(own.view(self.weight.shape))
        # If the optimizer updates the weights themselves, they are its tensors.
        for piece in self.pieces if self.layout.kind != "whole" else ():
            elements = self._elements(piece.begin, piece.length, Kind("", with_optimizer))
            _in_optimizer(self.layout.tensors[piece.tensor].data, piece).copy_(elements)
        if with_optimizer and self.pieces:
            for state, number in self.saved.states(self.name).items():
                self._load_state(state, number)

    def load_partition(self) -> None:
        """Fill the partition of a frozen weight under ZeRO-3; the last one of a weight is padded."""
        weight: Any = self.weight
        partition, rank = weight.ds_tensor.data.view(-1), torch.distributed.get_rank(weight.ds_process_group)
        begin = rank * len(partition)
        length = min(len(partition), weight.ds_numel - begin)
        if length > 0:
            partition[:length].copy_(self._elements(begin, length, Kind()))

    def _load_state(self, state: str, number: Any) -> None:
        if isinstance(number, list | dict | tuple):
            raise not_convertible(self.saved.folder, state)
        for piece in self.pieces:
            tensor = self.layout.tensors[piece.tensor]
            states = self.layout.optimizer.state[tensor]
            if number is not None:
                # A number, such as Adam's step count: the same for all elements.
                states[state] = _step_count(states.get(state), number, tensor, self.layout)
                continue
            elements = self._elements(piece.begin, piece.length, Kind(state))
            # Before the first step the optimizer has no states yet.
            if not isinstance(states.get(state), Tensor):
                states[state] = torch.zeros_like(tensor, dtype=elements.dtype)
            _in_optimizer(states[state], piece).copy_(elements)

    def _elements(self, begin: int, length: int, kind: Kind) -> Tensor:
        """Return elements of this rank's slice, counted flat."""
        width = prod(self.own.shape[1:])
        first, end = begin // width, -(-(begin + length) // width)
        rows = self.saved.rows(self.name, self.own, range(first, end), kind)
        return rows.flatten()[begin - first * width :][:length]


def set_weight(engine: interface.Engine, name: str, value: Tensor) -> None:
    """Set a weight that every tensor parallel rank has in full. Not for ZeRO-3."""
    layout = optimizer_layout(engine)
    assert layout is not None
    with torch.no_grad():
        weight = named_weights(engine.module)[name]
        weight.data.copy_(value)
        for piece in layout.pieces:
            if piece.name == name:
                elements = weight.data.flatten()[piece.begin : piece.begin + piece.length]
                _in_optimizer(layout.tensors[piece.tensor].data, piece).copy_(elements)


def _in_optimizer(tensor: Tensor, piece: Piece) -> Tensor:
    """View of a piece's elements in the optimizer's tensor."""
    return tensor.view(-1)[piece.start : piece.start + piece.length]


def _step_count(current: Any, number: Any, tensor: Tensor, layout: OptimizerLayout) -> Any:
    """Return a step count in the type that this optimizer expects.

    torch's optimizers keep it in a tensor, on the GPU for fused and capturable kernels; all others as a number.
    """
    if not type(layout.optimizer).__module__.startswith("torch."):
        return number if isinstance(current, Tensor) or current is None else type(current)(number)
    fused = any(group.get("fused") or group.get("capturable") for group in layout.optimizer.param_groups)
    return torch.as_tensor(number, dtype=torch.float32, device=tensor.device if fused else "cpu").clone()


def _mismatches(
    engine: interface.Engine,
    saved: WeightsByRank,
    layout: OptimizerLayout | None,
    with_optimizer: bool,
    optional: Collection[str],
    only: Collection[str] | None,
) -> Iterator[Problem]:
    """Everything that prevents loading this checkpoint into this engine."""
    subject = f"load ({saved.folder})"
    if layout is None:
        kind = type(engine.optimizer).__name__
        what = f"{subject}: DeepSpeed's {kind} cannot load a checkpoint that was written with a different layout"
        yield Problem(what, hint=saved_layout(saved.folder), id="checkpoint-layout-not-convertible", about=("load",))
    if with_optimizer and not saved.complete:
        hint = "set no_load_optim: true to start with a fresh optimizer state"
        what = f"{subject}: the checkpoint has no optimizer state (it was saved with no_save_optim, or imported)"
        yield Problem(what, hint=hint, id="checkpoint-without-optimizer", about=("load", "no_load_optim"))
    expected = union_over_ranks(set(named_weights(engine.module)))
    needed = expected if only is None else set(only)
    # The first three: a different model would lack hundreds.
    for missing in sorted(needed - set(saved.slices) - set(optional))[:3]:
        what = f"{subject}: the checkpoint does not fit this model: weight {missing} is missing from the checkpoint"
        yield Problem(what, hint=COMPARE_CONFIG, id="checkpoint-other-weights", about=("load",))
    replaced = {"output.weight"} if f"{REWARD_HEAD}.weight" in expected else set()
    for surplus in sorted(set(saved.slices) - expected - replaced)[:3]:
        what = f"{subject}: the checkpoint does not fit this model: the model has no weight {surplus}"
        yield Problem(what, hint=COMPARE_CONFIG, id="checkpoint-other-weights", about=("load",))


def union_over_ranks(names: set[str]) -> set[str]:
    """Return the names that any rank has. Collective."""
    return set().union(*of_all_ranks(names))


def restore_counters(engine: interface.Engine, saved: WeightsByRank, common: Mapping[str, Any]) -> None:
    """Restore what DeepSpeed restores besides tensors: schedule, counters, scheduled values, dynamic loss scale.

    common: the counters and the state of the schedule.
    """
    layout = optimizer_layout(engine)
    assert layout is not None
    if engine.lr_scheduler is not None:
        engine.lr_scheduler.load_state_dict(common["lr_scheduler"])
    for name in ("global_steps", "global_samples", "skipped_steps"):
        setattr(engine, name, common[name])
    # With another layout the optimizer may have more groups, for example of experts, and other buckets of a group.
    undivided = {theirs.get(DIVIDED_FROM, number): theirs for number, theirs in enumerate(saved.groups)}
    for number, group in enumerate(layout.optimizer.param_groups):
        theirs = undivided.get(group.get(DIVIDED_FROM, number), {})
        # "step": some optimizers count it per group, not per tensor.
        group |= {key: value for key, value in theirs.items() if key == "step" or (key in SCHEDULED and key in group)}
    before, after, outer = saved.loss_scale, None, engine.optimizer
    if isinstance(outer, interface.Fp16):
        after = outer.loss_scale_config
    elif isinstance(outer, interface.Zero12 | interface.Zero3):
        after = outer.loss_scaler
    # A static loss scale has no history.
    if after is not None and before.get("last_overflow_iter") is not None and hasattr(after, "last_overflow_iter"):
        for name in LOSS_SCALE_STATE:
            if name in before and hasattr(after, name):
                setattr(after, name, before[name])
