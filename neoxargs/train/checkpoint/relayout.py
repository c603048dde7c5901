"""Loading a checkpoint with another layout: every rank takes its shard of each weight and optimizer state by name.

Any sizes of tensor, pipeline, expert and data parallelism, any ZeRO stage and any precision convert to any others. What
does not depend on the layout (fp32 weights, Adam's moments, the schedule, the sample counter) is restored exactly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn

from neoxargs.base.problems import Problem, Problems
from neoxargs.facts.model import REWARD_HEAD
from neoxargs.train.checkpoint.inventory import Inventory
from neoxargs.train.checkpoint.weights_by_name import (
    COMPARE_CONFIG,
    CheckpointWeights,
    SavedWeights,
    not_convertible,
    rank_slice,
    saved_layout,
)
from neoxargs.train.deepspeed import interface, swap
from neoxargs.train.deepspeed.buckets import DIVIDED_FROM
from neoxargs.train.deepspeed.optimizer_layout import OptimizerLayout, Piece, optimizer_layout
from neoxargs.train.deepspeed.weight_names import named_weights
from neoxargs.train.parallel.layers import shards_of, unsharded_shape

#: Weights with one row per token. Their row count is padded to a multiple that depends on the layout, with zeros.
VOCABULARY_WEIGHTS = ("embedding.word_embeddings.weight", "output.weight")
#: Attributes of DeepSpeed's dynamic loss scale.
LOSS_SCALE_STATE = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")
#: Entries of the optimizer's parameter groups that a learning rate schedule changes.
SCHEDULED = ("lr", "betas", "momentum")


def load(
    engine: interface.Engine,
    folder: Path,
    inventories: list[Inventory],
    with_optimizer: bool,
    optional: Collection[str] = (),
    only: Collection[str] | None = None,
) -> dict[str, Any]:
    """Fill a DeepSpeed engine from a checkpoint of any layout. Collective: every rank calls it.

    with_optimizer: restore the optimizer state and the schedule too. optional, only: as of `load_weights`.
    Returns what DeepSpeed's `load_checkpoint` returns as client state. Raises Problems if the checkpoint does not fit.
    """
    saved = SavedWeights(folder, inventories)
    load_weights(engine, saved, with_optimizer, optional, only)
    if with_optimizer:
        restore_counters(engine, saved, saved.common)
    return saved.common


def load_weights(
    engine: interface.Engine,
    saved: CheckpointWeights,
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
                _Loader(saved, layout, weight, pieces).load(name, with_optimizer)


def _fill_partitions(
    zero: interface.Zero3,
    weights: dict[str, nn.Parameter],
    saved: CheckpointWeights,
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
            _Loader(saved, layout, weight, []).load_partition(name)
    for group in range(len(layout.tensors)):
        pieces = [piece for piece in layout.pieces if piece.tensor == group and piece.name in weights]
        with swap.in_memory(zero, group):
            for name in dict.fromkeys(piece.name for piece in pieces):
                parts = [piece for piece in pieces if piece.name == name]
                _Loader(saved, layout, weights[name], parts).load(name, with_optimizer)
    zero.checkpoint_event_epilogue()


class _Loader:
    """Fills one weight and its optimizer states."""

    def __init__(
        self, saved: CheckpointWeights, layout: OptimizerLayout, weight: nn.Parameter, pieces: list[Piece]
    ) -> None:
        self.saved, self.layout, self.weight, self.pieces = saved, layout, weight, pieces

    def load(self, name: str, with_optimizer: bool) -> None:
        slice_ = self._slice(name, self.saved.full_tensor(name, master=with_optimizer))
        _set_slice(self.weight, slice_, self.layout, self.pieces)
        if with_optimizer and self.pieces:
            for state, number in self.saved.states(name).items():
                self._load_state(name, state, number)

    def load_partition(self, name: str) -> None:
        """Fill the partition of a frozen weight under ZeRO-3; the last one of a weight is padded."""
        weight: Any = self.weight
        partition, rank = weight.ds_tensor.data.view(-1), torch.distributed.get_rank(weight.ds_process_group)
        own = self._slice(name, self.saved.full_tensor(name)).flatten()[rank * len(partition) :][: len(partition)]
        partition[: len(own)].copy_(own)

    def _load_state(self, name: str, state: str, number: Any) -> None:
        slice_ = self._slice(name, self.saved.full_tensor(name, state)) if number is None else None
        if isinstance(number, list | dict | tuple):
            raise not_convertible(self.saved.folder, state)
        for piece in self.pieces:
            tensor = self.layout.tensors[piece.tensor]
            states = self.layout.optimizer.state[tensor]
            if slice_ is None:
                states[state] = _step_count(states.get(state), number, tensor, self.layout)
                # A number, such as Adam's step count: the same for all elements.
                continue
            # Before the first step the optimizer has no states yet.
            if not isinstance(states.get(state), Tensor):
                states[state] = torch.zeros_like(tensor, dtype=slice_.dtype)
            _in_optimizer(states[state], piece).copy_(_in_weight(slice_, piece))

    def _slice(self, name: str, full: Tensor) -> Tensor:
        """Return this rank's slice of a full weight, after adapting the vocabulary padding to this run's."""
        expected = unsharded_shape(self.weight)
        if name in VOCABULARY_WEIGHTS:
            full = with_rows(full, expected[0])
        if list(full.shape) != expected:
            shapes = f"shape {_shape_text(full.shape)} in the checkpoint, but this run expects {_shape_text(expected)}"
            what = f"load ({self.saved.folder}): {name} has {shapes}"
            raise Problems(Problem(what, hint=COMPARE_CONFIG, id="checkpoint-weight-shape", about=("load",)))
        # In the order in which `Weights.parameter` sliced it: for tensor parallel ranks, then for expert parallel ones.
        return reduce(rank_slice, shards_of(self.weight), full)


def _set_slice(weight: nn.Parameter, slice_: Tensor, layout: OptimizerLayout, pieces: list[Piece]) -> None:
    """Set this rank's slice of a weight, and the parts of it that the optimizer has."""
    if layout.kind != "zero3":  # under ZeRO-3 the weight itself is empty
        weight.data.copy_(slice_)
    for piece in pieces:
        _in_optimizer(layout.tensors[piece.tensor].data, piece).copy_(_in_weight(slice_, piece))


def set_weight(engine: interface.Engine, name: str, value: Tensor) -> None:
    """Set a weight that every tensor parallel rank has in full. Not for ZeRO-3."""
    layout = optimizer_layout(engine)
    assert layout is not None
    with torch.no_grad():
        weight = named_weights(engine.module)[name]
        _set_slice(weight, value.to(weight), layout, [piece for piece in layout.pieces if piece.name == name])


def with_rows(full: Tensor, count: int) -> Tensor:
    """(rows, ...) -> (count, ...): padding rows at the end are dropped, or added with zeros."""
    if len(full) == count:
        return full
    rows = full.new_zeros(count, *full.shape[1:])
    rows[: min(len(full), count)] = full[:count]
    return rows


def _in_optimizer(tensor: Tensor, piece: Piece) -> Tensor:
    """View of a piece's elements in the optimizer's tensor."""
    return tensor.view(-1)[piece.start : piece.start + piece.length]


def _in_weight(slice_: Tensor, piece: Piece) -> Tensor:
    """Elements of a piece in this rank's slice of its weight."""
    return slice_.flatten()[piece.begin : piece.begin + piece.length]


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
    saved: CheckpointWeights,
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
    by_rank: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(by_rank, names)
    return set().union(*by_rank)


def restore_counters(engine: interface.Engine, saved: CheckpointWeights, common: Mapping[str, Any]) -> None:
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


def _shape_text(shape: Any) -> str:
    return " x ".join(map(str, shape))
