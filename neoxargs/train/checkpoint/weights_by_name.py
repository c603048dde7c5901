"""The weights and optimizer states of a checkpoint by name, assembled from the files of all ranks that wrote it.

Files are memory-mapped, not read: a rank reads only the elements that it takes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from neoxargs.base.problems import Problem, Problems
from neoxargs.files.checkpoints import folder as checkpoint_folder
from neoxargs.registry import REGISTRY
from neoxargs.train.checkpoint.inventory import Inventory
from neoxargs.train.checkpoint.slices import Slice, put_together
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
class SavedSlice:
    """A rank's slice of a weight, and the files that hold its elements."""

    file: str
    key: str
    shape: list[int]
    shards: list[TensorShard]
    """How the weight is divided among the tensor parallel ranks, and each of their slices among the expert ranks."""
    pieces: dict[tuple[int, int], tuple[Inventory, Piece]] = field(default_factory=dict)
    """(first element, length) -> the optimizer's piece. A tied weight, which is listed twice, has only one entry."""


class Kind(NamedTuple):
    """Which of a weight's tensors is read."""

    state: str = ""
    """The name of an optimizer state; "" for the weight."""
    master: bool = False
    """Whether the weight is the optimizer's fp32 one, if there is one, instead of the model's."""
    unless: torch.dtype | None = None
    """If the model's weights have this type, they are read nevertheless: they are the fp32 ones, rounded."""


class CheckpointWeights(Protocol):
    """A checkpoint, of this or another program, as `deepy export` reads it: see SavedWeights."""

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


class WeightsByRank(CheckpointWeights, Protocol):
    """A checkpoint of which every rank reads its part, as `relayout` loads it."""

    def rows(self, name: str, own: Slice, rows: range, kind: Kind) -> Tensor: ...


class SavedWeights:
    """The weights and optimizer states of a checkpoint, located by its inventories.

    slices: name of a weight -> the ranks by which it is divided (tensor parallel, expert parallel) -> its SavedSlice.
    """

    def __init__(self, folder: Path, inventories: Sequence[Inventory]) -> None:
        self.folder, self.inventories = folder, inventories
        self.slices: dict[str, dict[tuple[int, ...], SavedSlice]] = {}
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
        for shard in part.shards:
            shape[shard.dimension] *= shard.size
        return shape

    def _first_slice(self, name: str) -> SavedSlice:
        return next(iter(self.slices[name].values()))

    def optimizer_file(self, inventory: Inventory) -> OptimizerFile:
        """Return the contents of an inventory's optimizer file, which is opened once and memory-mapped."""
        name = inventory["optimizer"]
        if name not in self.optimizer_files:
            self.optimizer_files[name] = _optimizer_file(inventory["kind"], self._file(name))
        return self.optimizer_files[name]

    def states(self, name: str) -> dict[str, Any]:
        """Return a weight's optimizer states: numbers by value, None for tensors, which `full_tensor` returns."""
        pieces = self._first_slice(name).pieces
        if not pieces:  # not trained
            return {}
        inventory, piece = next(iter(pieces.values()))
        state = self.optimizer_file(inventory).state.get(piece.tensor, {})
        return {key: None if isinstance(value, Tensor) and value.dim() else value for key, value in state.items()}

    def full_tensor(self, name: str, state: str = "", master: bool = False) -> Tensor:
        """Return a weight, or one of its optimizer states, joined over all ranks.

        master: return the optimizer's fp32 master weight, if there is one, instead of the model's weight.
        Raises Problems if the state was not saved element by element.
        """
        shape = self.shape(name)
        return self.rows(name, Slice(shape or [1]), range(*shape[:1] or [1]), Kind(state, master)).view(shape)

    def rows(self, name: str, own: Slice, rows: range, kind: Kind) -> Tensor:
        """Return rows of a rank's slice of a weight, or of one of its optimizer states, and read nothing else.

        rows: those of the slice, not of the full weight. Rows that the checkpoint does not have are zero.
        """
        master = kind.master and kind.unless != self.dtype
        theirs = self.shape(name) or [1]
        parts = (
            (Slice(theirs, part.shards), partial(self._read, part, kind.state, master))
            for part in self.slices[name].values()
        )
        return put_together(parts, own, rows, self.dtype)

    def _read(self, part: SavedSlice, state: str, master: bool, rows: range) -> Tensor:
        """Return rows of a saved slice: a view of a file, if one file has them."""
        shape = [len(rows), *part.shape[1:]]
        width = prod(shape[1:])
        begin, end = rows.start * width, rows.stop * width
        pieces = [
            (inventory, piece)
            for inventory, piece in part.pieces.values()
            if piece.begin < end and begin < piece.begin + piece.length
        ]
        partitioned = self.inventories[0]["kind"] == "zero3"  # ZeRO-3 saves the weights in the optimizer files only
        has_master = master and pieces and self.optimizer_file(pieces[0][0]).weights
        if not state and not partitioned and not has_master:
            file = self._file(part.file)
            # Files of the plain engine and of experts have the weights under "module"; those of a pipeline layer have
            # nothing else.
            stored: Tensor = file.get("module", file)[part.key]
            return stored.view(part.shape or [1])[rows.start : rows.stop]
        tensors = [(self._tensor(inventory, piece, state), piece) for inventory, piece in pieces]
        tensor, piece = tensors[0]
        if piece.begin <= begin and end <= piece.begin + piece.length:
            return tensor[begin - piece.begin : end - piece.begin].view(shape)
        found = torch.empty(end - begin, dtype=tensor.dtype)
        for tensor, piece in tensors:
            low, high = max(begin, piece.begin), min(end, piece.begin + piece.length)
            found[low - begin : high - begin] = tensor[low - piece.begin : high - piece.begin]
        return found.view(shape)

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
            self.slices.setdefault(name, {}).setdefault(_ranks(shards), SavedSlice(file, key, shape, shards))
        for piece in (Piece(*entry) for entry in inventory["pieces"]):
            _, _, _, *numbers = inventory["weights"][piece.name]
            part = self.slices[piece.name][_ranks(_shards(numbers))]
            part.pieces.setdefault((piece.begin, piece.length), (inventory, piece))


def _shards(numbers: list[list[int] | None]) -> list[TensorShard]:
    """Return the shards of an inventory's entry."""
    return [TensorShard(*each) for each in numbers if each]


def _ranks(shards: list[TensorShard]) -> tuple[int, ...]:
    return tuple(shard.rank for shard in shards)


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
