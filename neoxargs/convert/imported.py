"""Write a checkpoint of weights from another program: unsharded, in one file per layer.

Only one layer is in memory at a time. DeepSpeed cannot load such a checkpoint; `relayout.py` does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from neoxargs.config.config import Config
from neoxargs.files.checkpoints.folder import BASE, CONFIG, RUN, Base, Written, delete
from neoxargs.targets.ranks import train_values
from neoxargs.train.checkpoint import inventory
from neoxargs.train.checkpoint.commit import begin, commit
from neoxargs.train.checkpoint.rank_files import RankFiles

# DeepSpeed's name for the first rank's states, by which other programs recognise a checkpoint.
STATES = "mp_rank_00_model_states.pt"


@dataclass(frozen=True)
class Imported:
    """The contents of a checkpoint to write.

    common: the counters and the state of the schedule. names: of the weights, those of a layer one after the other.
    optimizer: returns the optimizer file of some weights; None if there is no optimizer state. base: the model of
    adapters, if these are what is written.
    """

    common: dict[str, Any]
    dtype: torch.dtype
    names: Sequence[str]
    tensor: Callable[[str], Tensor]
    optimizer: Callable[[Sequence[str]], dict[str, Any]] | None = None
    base: Base | None = None


def write(source: Imported, config: Config, folder: Path, advance: Callable[[int], object]) -> None:
    """Add the checkpoint to a folder. advance: called with the bytes of the weights of each layer that is written."""
    iteration = source.common["iteration"]
    part = begin(folder, iteration)
    try:
        files = RankFiles(part)
        # groupby joins neighbours only; `names` has those of a layer one after the other.
        for layer, names in groupby(source.names, _layer):
            advance(_write_layer(source, files, layer, list(names)))
        files.save(source.common, part / STATES)
        files.text(json.dumps(train_values(config), indent=1), part / CONFIG)
        files.text(Written().to_json(), part / RUN)
        if source.base:
            files.text(source.base.to_json(), part / BASE)
        files.raise_error()
        commit(folder, iteration, files.digests)
    finally:
        delete(part)  # after an exception; otherwise it has been renamed


def _layer(name: str) -> str:
    """Return the layer of a weight, or its module outside the layers."""
    match = re.match(r"layers\.\d+|[a-z_]+", name)
    assert match
    return match[0]


def _write_layer(source: Imported, files: RankFiles, layer: str, names: list[str]) -> int:
    """Write the files of one layer; return the bytes of its weights."""
    tensors = {name: source.tensor(name).contiguous() for name in names}
    # Without optimizer state, the file with the counters stands for it, because an inventory names one.
    file, optimizer = f"weights-{layer}.pt", f"optimizer-{layer}.pt" if source.optimizer else STATES
    files.save(tensors, files.part / file)
    where = {name: [file, name, list(tensor.shape), None] for name, tensor in tensors.items()}
    pieces = [[name, number, 0, 0, tensor.numel()] for number, (name, tensor) in enumerate(tensors.items())]
    content = {
        "kind": "imported", "dtype": str(source.dtype), "states": STATES, "optimizer": optimizer, "weights": where,
        "pieces": pieces if source.optimizer else [], "complete": source.optimizer is not None,
    }  # fmt: skip
    files.text(json.dumps(content), files.part / f"{inventory.PREFIX}{layer}.json")
    if source.optimizer:
        files.save(source.optimizer(names), files.part / optimizer)
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
