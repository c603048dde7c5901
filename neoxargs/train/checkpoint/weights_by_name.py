"""The weights and optimizer states of a checkpoint by name, assembled from the files of all ranks that wrote it.

Files are memory-mapped, not read: a rank that takes its shard of every weight holds one full tensor at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from neoxargs.base.problems import Problem, Problems
from neoxargs.files.checkpoints import folder as checkpoint_folder
from neoxargs.registry import REGISTRY
from neoxargs.train.checkpoint.inventory import Inventory
from neoxargs.train.deepspeed import checkpoint_io
from neoxargs.train.deepspeed.optimizer_layout import Piece
from neoxargs.train.parallel.layers import TensorShard

#: Parameters that determine which rank holds which part of the model.
LAYOUT = ("model_parallel_size", "pipe_parallel_size")
#: Hint for a checkpoint of a different model.
COMPARE_CONFIG = "compare this configuration with the checkpoint's config.json"


class OptimizerFile(NamedTuple):
    """The contents of one optimizer file."""

    weights: list[Tensor]
    """fp32 master weights, one entry per optimizer tensor; empty if the model's weights are fp32 themselves."""
    state: dict[int, dict[str, Any]]
    """Index of an optimizer tensor -> its state: `step`, `exp_avg` and so on."""
    groups: list[dict[str, Any]]
    """The optimizer's `param_groups`."""
    rest: dict[str, Any]
    """Everything else DeepSpeed saves, such as the loss scale."""


@dataclass
class Slice:
    """A rank's slice of a weight, and the files that hold its elements."""

    file: str
    key: str
    shape: list[int]
    shards: list[TensorShard | None]
    """How the weight is divided among the tensor parallel ranks, and each of their slices among the expert ranks."""
    pieces: dict[tuple[int, int], tuple[Inventory, Piece]] = field(default_factory=dict)
    """(first element, length) -> the optimizer's piece. A tied weight, which is listed twice, has only one entry."""

    @property
    def first(self) -> tuple[Inventory, Piece]:
        return next(iter(self.pieces.values()))


class CheckpointWeights(Protocol):
    """A checkpoint, of this or another program, as `relayout` and `deepy export` read it: see SavedWeights."""

    folder: Path

    @property
    def slices(self) -> Collection[str]:
        """The names of the weights."""
        ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def complete(self) -> bool: ...

    @property
    def common(self) -> dict[str, Any]: ...

    @property
    def groups(self) -> list[dict[str, Any]]: ...

    @property
    def loss_scale(self) -> dict[str, Any]: ...

    def shape(self, name: str) -> list[int]: ...

    def states(self, name: str) -> dict[str, Any]: ...

    def full_tensor(self, name: str, state: str = "", master: bool = False) -> Tensor: ...


class SavedWeights:
    """The weights and optimizer states of a checkpoint, located by its inventories.

    slices: name of a weight -> (tensor parallel rank, expert parallel rank) -> its Slice.
    """

    def __init__(self, folder: Path, inventories: Sequence[Inventory]) -> None:
        self.folder, self.inventories = folder, inventories
        self.slices: dict[str, dict[tuple[int, ...], Slice]] = {}
        self.files: dict[str, Any] = {}
        self.optimizer_files: dict[str, OptimizerFile] = {}
        for inventory in inventories:
            self._add(inventory)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the model's weights."""
        dtype: torch.dtype = getattr(torch, self.inventories[0]["dtype"].removeprefix("torch."))
        return dtype

    @property
    def complete(self) -> bool:
        """Whether the checkpoint has optimizer state."""
        return all(inventory["complete"] for inventory in self.inventories)

    @property
    def common(self) -> dict[str, Any]:
        """The part of DeepSpeed's state that is equal on every rank: counters, learning rate schedule."""
        return dict(self._file(self.inventories[0]["states"]))

    @property
    def groups(self) -> list[dict[str, Any]]:
        """The optimizer's `param_groups`."""
        return self.optimizer_file(self.inventories[0]).groups

    @property
    def loss_scale(self) -> dict[str, Any]:
        """The attributes of the loss scale, and possibly others."""
        # ZeRO saves its loss scaler as an object; the fp16 optimizer without ZeRO saves the attributes one by one.
        rest = self.optimizer_file(self.inventories[0]).rest
        scaler = rest.get("loss_scaler")
        return vars(scaler) if scaler else rest

    def shape(self, name: str) -> list[int]:
        """Return the shape of a weight, joined over all ranks."""
        part = self._first_slice(name)
        shape = list(part.shape)
        for shard in filter(None, part.shards):
            shape[shard.dimension] *= shard.size
        return shape

    def _first_slice(self, name: str) -> Slice:
        return next(iter(self.slices[name].values()))

    def optimizer_file(self, inventory: Inventory) -> OptimizerFile:
        """Return the contents of an inventory's optimizer file, which is opened once and memory-mapped."""
        name = inventory["optimizer"]
        if name not in self.optimizer_files:
            self.optimizer_files[name] = _optimizer_file(inventory["kind"], self._file(name))
        return self.optimizer_files[name]

    def states(self, name: str) -> dict[str, Any]:
        """Return a weight's optimizer states: numbers by value, None for tensors, which `full_tensor` returns."""
        if not self._first_slice(name).pieces:  # not trained
            return {}
        inventory, piece = self._first_slice(name).first
        state = self.optimizer_file(inventory).state.get(piece.tensor, {})
        return {key: None if isinstance(value, Tensor) and value.dim() else value for key, value in state.items()}

    def full_tensor(self, name: str, state: str = "", master: bool = False) -> Tensor:
        """Return a weight, or one of its optimizer states, joined over all ranks.

        master: return the optimizer's fp32 master weight, if there is one, instead of the model's weight.
        Raises Problems if the state was not saved element by element.
        """
        of_tensor, of_experts = self._first_slice(name).shards
        # Sorted by (tensor parallel rank, expert parallel rank), because groupby joins neighbours only.
        by_tensor = groupby(sorted(self.slices[name].items()), lambda item: item[0][0])
        slices = [_joined([self._read(part, state, master) for _, part in parts], of_experts) for _, parts in by_tensor]
        return _joined(slices, of_tensor)

    def _read(self, part: Slice, state: str, master: bool) -> Tensor:
        partitioned = self.inventories[0]["kind"] == "zero3"  # ZeRO-3 saves the weights in the optimizer files only
        has_master = master and part.pieces and self.optimizer_file(part.first[0]).weights
        if not state and not partitioned and not has_master:
            file = self._file(part.file)
            # Files of the plain engine and of experts have the weights under "module"; those of a pipeline layer have
            # nothing else.
            stored: Tensor = file.get("module", file)[part.key]
            return stored
        tensors = [(self._tensor(inventory, piece, state), piece) for inventory, piece in part.pieces.values()]
        slice_ = torch.empty(part.shape, dtype=tensors[0][0].dtype)
        for tensor, piece in tensors:
            slice_.view(-1)[piece.begin : piece.begin + piece.length] = tensor
        return slice_

    def _tensor(self, inventory: Inventory, piece: Piece, state: str) -> Tensor:
        if swapped := inventory.get("swapped", {}).get(str(piece.tensor)):
            return self._swapped(Path(swapped), piece, state)
        file = self.optimizer_file(inventory)
        flat = (file.state[piece.tensor][state] if state else file.weights[piece.tensor]).detach().flatten()
        # A state tensor with fewer elements than its weight cannot be cut into the weight's pieces.
        if flat.numel() < piece.start + piece.length:
            raise not_convertible(self.folder, state)
        return flat[piece.start : piece.start + piece.length]

    def _swapped(self, file: Path, piece: Piece, state: str) -> Tensor:
        path = self.folder / file.with_name(f"{state}-{file.name}" if state else file.name)
        # 4: bytes of an fp32 element.
        flat = torch.from_file(str(path), size=path.stat().st_size // 4, dtype=torch.float32)
        return flat[piece.start : piece.start + piece.length]

    def _file(self, name: str) -> Any:
        if name not in self.files:
            self.files[name] = checkpoint_io.read(self.folder / name, mmap=True)
        return self.files[name]

    def _add(self, inventory: Inventory) -> None:
        for name, (file, key, shape, *numbers) in inventory["weights"].items():
            shards = _shards(numbers)
            # setdefault: data parallel ranks list the same slices; the first one is taken.
            self.slices.setdefault(name, {}).setdefault(_slice_ranks(shards), Slice(file, key, shape, shards))
        for piece in (Piece(*entry) for entry in inventory["pieces"]):
            _, _, _, *numbers = inventory["weights"][piece.name]
            part = self.slices[piece.name][_slice_ranks(_shards(numbers))]
            part.pieces.setdefault((piece.begin, piece.length), (inventory, piece))


def _shards(numbers: list[list[int] | None]) -> list[TensorShard | None]:
    """Return the shards of an inventory's entry, which has that of the expert parallel rank only if there is one."""
    tensor, expert = [TensorShard(*each) if each else None for each in [*numbers, None][:2]]
    return [tensor, expert]


def _slice_ranks(shards: list[TensorShard | None]) -> tuple[int, ...]:
    """Return the tensor parallel rank and the expert parallel rank of a slice."""
    return tuple(shard.rank if shard else 0 for shard in shards)


def _joined(slices: list[Tensor], shard: TensorShard | None) -> Tensor:
    return slices[0] if shard is None or len(slices) == 1 else join_slices(slices, shard)


def join_slices(slices: list[Tensor], shard: TensorShard) -> Tensor:
    """Join the slices of all ranks, in rank order, to the full weight."""
    # A weight of several parts (a gated projection) is cut part by part, so its parts are joined one by one too.
    parts = zip(*(slice_.chunk(shard.parts, shard.dimension) for slice_ in slices), strict=True)
    return torch.cat(list(chain.from_iterable(parts)), shard.dimension)


def rank_slice(full: Tensor, shard: TensorShard) -> Tensor:
    """Return the slice of the full weight that the rank `shard.rank` holds."""
    parts = full.chunk(shard.parts, shard.dimension)
    return torch.cat([part.chunk(shard.size, shard.dimension)[shard.rank] for part in parts], shard.dimension)


def saved_layout(folder: Path) -> str:
    """Return a hint that names the layout a checkpoint was written with."""
    values = checkpoint_folder.configuration(folder)
    if values is None:
        return "use the layout that the checkpoint was written with"
    sizes = [f"{name} {values.get(name, REGISTRY.parameters[name].default)}" for name in LAYOUT]
    ranks = [f"{count} rank{'s' * (count != 1)}"] if (count := values.get("world_size")) else []
    return f"use the layout that the checkpoint was written with: {', '.join([*sizes, *ranks])}"


def not_convertible(folder: Path, state: str) -> Problems:
    """Return the problem of an optimizer state that is not saved element by element."""
    what = f"load ({folder}): the optimizer state {state!r} cannot be converted to a different layout of ranks"
    hint = f"{saved_layout(folder)}; or set no_load_optim: true to start with a fresh optimizer state"
    return Problems(Problem(what, hint=hint, id="checkpoint-state-not-divisible", about=("load", "no_load_optim")))


def _optimizer_file(kind: str, file: dict[str, Any]) -> OptimizerFile:
    # The keys are those of DeepSpeed 0.19's optimizers; kind: as in OptimizerLayout.
    if kind in ("whole", "copies"):
        outer = file["optimizer"]
        weights = list(chain.from_iterable(outer["fp32_groups"])) if kind == "copies" else []
        inner = outer["optimizer_state_dict"] if kind == "copies" else outer
    else:
        outer = file["optimizer_state_dict"]
        weights = outer["fp32_flat_groups" if kind == "zero3" else "single_partition_of_fp32_groups"]
        inner = outer["optimizer_state_dict" if kind == "zero3" else "base_optimizer_state"]
    if isinstance(inner, list):  # saved with DeepSpeed's `elastic_checkpoint`: a list of states, without groups
        inner = {"state": dict(enumerate(inner)), "param_groups": []}
    return OptimizerFile(weights, inner["state"], inner["param_groups"], outer)
