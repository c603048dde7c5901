"""The inventory of a checkpoint: which file holds which piece of which weight, for runs with another layout.

There is one inventory file per optimizer file, named after it: layout-mp_rank_00.json without ZeRO, where weights and
optimizer share a file, or layout-(bf16_)zero_pp_rank_0_mp_rank_00.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import nn

from neoxargs.train.checkpoint import expert_files
from neoxargs.train.checkpoint.rank_files import RankFiles
from neoxargs.train.checkpoint.readers import Readers
from neoxargs.train.deepspeed import interface, swap
from neoxargs.train.deepspeed.optimizer_layout import checkpoint_files, optimizer_layout
from neoxargs.train.deepspeed.pipeline_module import is_pipeline_module, stage_layers
from neoxargs.train.deepspeed.weight_names import named_weights
from neoxargs.train.parallel.layers import shape_of
from neoxargs.train.process.collectives import of_all_ranks

PREFIX = "layout-"
Inventory = dict[str, Any]


def inventory(engine: interface.Engine) -> Inventory | None:
    """Return the contents of this rank's optimizer file and weight files; None if the optimizer's layout is unknown.

    Frozen weights are in no file.
    kind, pieces: as in OptimizerLayout.
    states, optimizer: names of the files with the weights and with the optimizer state.
    weights: name -> [file, key in the file, shape of the slice, TensorShard or None]; for experts that data parallel
    ranks divide, also the TensorShard of this division.
    swapped: number of an optimizer tensor that was swapped to NVMe -> its file. The file with that name has the fp32
    weights; those with the prefixes `exp_avg-` and `exp_avg_sq-` have the states.
    """
    layout = optimizer_layout(engine)
    if layout is None:
        return None
    states, optimizer = checkpoint_files(engine, layout)
    trained = {name for name, weight in named_weights(engine.module).items() if weight.requires_grad}
    weights = {name: entry for name, entry in _weights(engine.module, states).items() if name in trained}
    pieces = layout.pieces
    if own := expert_files.of(engine):
        weights |= {name: [own.name, name, *_shape_and_shards(weight)] for name, weight in own.weights.items()}
        # Without ZeRO, DeepSpeed's optimizer file is written by the first rank only; other experts' states are in their
        # own files.
        if own.has_optimizer:
            optimizer, weights = own.name, {name: weights[name] for name in own.weights}
            pieces = [piece for piece in pieces if piece.name in weights]
    return {
        "kind": layout.kind,
        "dtype": str(next(engine.module.parameters()).dtype),
        "states": states,
        "optimizer": optimizer,
        "weights": weights,
        "pieces": [list(piece) for piece in pieces],
        **({"swapped": swap.swapped_files(engine)} if engine.zero_nvme_offload_optimizer() else {}),
    }


def write(engine: interface.Engine, files: RankFiles, complete: bool) -> None:
    """Write this rank's inventory, if this rank writes an optimizer file.

    complete: whether that file holds the optimizer state (it does not with `no_save_optim`).
    """
    own = expert_files.of(engine)
    # DeepSpeed's own flags of what this rank writes.
    writes = engine.save_zero_checkpoint or engine.save_non_zero_checkpoint or (own and own.is_written)
    if content := inventory(engine) if writes else None:
        files.text(json.dumps({**content, "complete": complete}), files.part / _file_name(content))


def files(folder: Path) -> list[Path]:
    """Return the files of all inventories of a checkpoint; an empty list if it was written without any."""
    return sorted(folder.glob(f"{PREFIX}*.json"))


def read(folder: Path) -> list[Inventory]:
    """Return all inventories of a checkpoint."""
    return [_content(path) for path in files(folder)]


def read_together(folder: Path) -> list[Inventory]:
    """Return all inventories of a checkpoint, of which each rank reads its share. Collective."""
    readers = Readers.of(folder)
    own = {path.name: _content(path) for path in files(folder)[readers.number :: readers.ranks]}
    contents = {name: content for of_rank in of_all_ranks(own) for name, content in of_rank.items()}
    return [contents[name] for name in sorted(contents)]


def has_same_layout(engine: interface.Engine, folder: Path) -> bool:
    """Return whether this rank of this run would write the files that the checkpoint has for it."""
    ours = inventory(engine)
    if ours is None or not (folder / _file_name(ours)).exists():
        return False
    saved = _content(folder / _file_name(ours))
    # Through JSON and back, so that tuples compare equal to the saved lists.
    return bool(saved == {**json.loads(json.dumps(ours)), "complete": saved["complete"]})


def _content(file: Path) -> Inventory:
    content: Inventory = json.loads(file.read_text(encoding="utf-8"))
    return content


def _file_name(content: Inventory) -> str:
    stem = Path(content["optimizer"]).stem
    return f"{PREFIX}{stem.removesuffix('_model_states').removesuffix('_optim_states')}.json"


def _weights(module: Any, states: str) -> dict[str, Any]:
    if not is_pipeline_module(module):  # one file has all weights
        return {name: [states, name, *_shape_and_shards(weight)] for name, weight in named_weights(module).items()}
    names = {id(weight): name for name, weight in named_weights(module).items()}
    entries: dict[str, Any] = {}
    for number, layer in enumerate(stage_layers(module)):
        file = Path(module.ckpt_layer_path("", number)).name
        of_layer = {names[id(w)]: [file, key, *_shape_and_shards(w)] for key, w in layer.named_parameters()}
        entries = of_layer | entries  # a layer used several times is saved once, in the file of its first use
    return entries


def _shape_and_shards(weight: nn.Parameter) -> list[list[int] | None]:
    shards = [getattr(weight, name, None) for name in ("tensor_shard", "expert_shard")]
    entries = [list(shard) if shard else None for shard in shards]
    return [list(shape_of(weight)), *(entries if entries[1] else entries[:1])]
