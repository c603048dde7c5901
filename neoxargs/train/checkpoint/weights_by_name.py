"""The weights and optimizer states of a checkpoint by their names, put together from the files of all its ranks.

Files are mapped into memory, not read: a rank that takes its share holds one whole tensor at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from neoxargs.problems import Problem, Problems
from neoxargs.train.checkpoint.inventory import Inventory
from neoxargs.train.deepspeed.optimizer_layout import Piece
from neoxargs.train.parallel.make import TensorShard

#: Hint for a checkpoint of another model.
COMPARE_CONFIG = "compare this configuration with the checkpoint's config.json"


class Optim(NamedTuple):
    """What one optimizer file holds."""

    weights: list[Tensor]
    """In fp32, tensor by tensor; empty where the model's own are."""
    state: dict[int, dict[str, Any]]
    """Of every tensor: `step`, `exp_avg` and so on."""
    groups: list[dict[str, Any]]
    rest: dict[str, Any]
    """The loss scale among others."""


@dataclass
class Slice:
    """A tensor parallel rank's slice of a weight, and where its elements are."""

    file: str
    key: str
    shape: list[int]
    cut: TensorShard | None
    pieces: dict[tuple[int, int], tuple[Inventory, Piece]] = field(default_factory=dict)
    """By first element and length: tied weights are there twice."""

    @property
    def first(self) -> tuple[Inventory, Piece]:
        return next(iter(self.pieces.values()))


class Saved:
    """A checkpoint, by the inventories in it."""

    def __init__(self, folder: Path, inventories: Sequence[Inventory]) -> None:
        self.folder, self.inventories = folder, inventories
        self.slices: dict[str, dict[int, Slice]] = {}
        self.files: dict[str, Any] = {}
        self.optims: dict[str, Optim] = {}
        for inventory in inventories:
            self._add(inventory)

    @property
    def complete(self) -> bool:
        """Are the optimizer's states there?"""
        return all(inventory["complete"] for inventory in self.inventories)

    @property
    def common(self) -> dict[str, Any]:
        """What every rank saved alike: counters, schedule."""
        return self._file(self.inventories[0]["states"])  # type: ignore[no-any-return]

    def optim(self, inventory: Inventory) -> Optim:
        name = inventory["optimizer"]
        if name not in self.optims:
            self.optims[name] = _optim(inventory["kind"], self._file(name))
        return self.optims[name]

    def states(self, name: str) -> dict[str, Any]:
        """A weight's states: numbers as they are, for tensors None (`whole` gives them)."""
        inventory, piece = self.slices[name][0].first
        found = self.optim(inventory).state.get(piece.tensor, {})
        return {key: None if isinstance(value, Tensor) and value.dim() else value for key, value in found.items()}

    def whole(self, name: str, state: str = "", master: bool = False) -> Tensor:
        """A weight, or one of its states, over all tensor parallel ranks.

        master: the optimizer's fp32 copy of the weight, where it has one, rather than the model's own.
        """
        slices = [self._read(part, state, master) for _, part in sorted(self.slices[name].items())]
        cut = self.slices[name][0].cut
        return slices[0] if cut is None or len(slices) == 1 else join(slices, cut)

    def _read(self, part: Slice, state: str, master: bool) -> Tensor:
        partitioned = self.inventories[0]["kind"] == "zero3"  # which keeps no other copy
        if not state and not partitioned and not (master and self.optim(part.first[0]).weights):
            file = self._file(part.file)
            return file.get("module", file)[part.key]  # type: ignore[no-any-return]
        found = [(self._tensor(inventory, piece, state), piece) for inventory, piece in part.pieces.values()]
        slice_ = torch.empty(part.shape, dtype=found[0][0].dtype)
        for tensor, piece in found:
            slice_.view(-1)[piece.begin : piece.begin + piece.length] = tensor
        return slice_

    def _tensor(self, inventory: Inventory, piece: Piece, state: str) -> Tensor:
        if swapped := inventory.get("swapped", {}).get(str(piece.tensor)):
            return self._swapped(Path(swapped), piece, state)
        optim = self.optim(inventory)
        flat = (optim.state[piece.tensor][state] if state else optim.weights[piece.tensor]).detach().flatten()
        if flat.numel() < piece.start + piece.length:
            raise cannot_divide(self.folder, state)
        return flat[piece.start : piece.start + piece.length]

    def _swapped(self, file: Path, piece: Piece, state: str) -> Tensor:
        path = self.folder / file.with_name(f"{state}-{file.name}" if state else file.name)
        flat = torch.from_file(str(path), size=path.stat().st_size // 4, dtype=torch.float32)
        return flat[piece.start : piece.start + piece.length]

    def _file(self, name: str) -> Any:
        if name not in self.files:
            # As DeepSpeed reads its own files: they hold objects of its classes.
            self.files[name] = torch.load(self.folder / name, map_location="cpu", mmap=True, weights_only=False)
        return self.files[name]

    def _add(self, inventory: Inventory) -> None:
        for name, (file, key, shape, numbers) in inventory["weights"].items():
            cut = TensorShard(*numbers) if numbers else None
            self.slices.setdefault(name, {}).setdefault(cut.rank if cut else 0, Slice(file, key, shape, cut))
        for piece in (Piece(*entry) for entry in inventory["pieces"]):
            *_, numbers = inventory["weights"][piece.name]
            part = self.slices[piece.name][TensorShard(*numbers).rank if numbers else 0]
            part.pieces.setdefault((piece.begin, piece.length), (inventory, piece))


def join(slices: list[Tensor], cut: TensorShard) -> Tensor:
    """The slices of all ranks put together."""
    parts = zip(*(mine.chunk(cut.parts, cut.dimension) for mine in slices), strict=True)
    return torch.cat(list(chain.from_iterable(parts)), cut.dimension)


def share(whole: Tensor, cut: TensorShard) -> Tensor:
    """One rank's slice."""
    parts = whole.chunk(cut.parts, cut.dimension)
    return torch.cat([part.chunk(cut.size, cut.dimension)[cut.rank] for part in parts], cut.dimension)


def cannot_divide(folder: Path, state: str) -> Problems:
    what = f"load ({folder}): the optimizer state {state!r} cannot be converted to another layout"
    hint = "continue on the layout that wrote it, or set no_load_optim: true"
    return Problems(Problem(what, hint=hint, id="checkpoint-state-not-divisible", about=("load", "no_load_optim")))


def _optim(kind: str, file: dict[str, Any]) -> Optim:
    if kind in ("whole", "copies"):
        outer = file["optimizer"]
        weights = list(chain.from_iterable(outer["fp32_groups"])) if kind == "copies" else []
        inner = outer["optimizer_state_dict"] if kind == "copies" else outer
    else:
        outer = file["optimizer_state_dict"]
        weights = outer["fp32_flat_groups" if kind == "zero3" else "single_partition_of_fp32_groups"]
        inner = outer["optimizer_state_dict" if kind == "zero3" else "base_optimizer_state"]
    if isinstance(inner, list):  # `elastic_checkpoint`
        inner = {"state": dict(enumerate(inner)), "param_groups": []}
    return Optim(weights, inner["state"], inner["param_groups"], outer)
