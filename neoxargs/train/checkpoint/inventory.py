"""What lies where in a checkpoint: one file per optimizer file, so that a run of another layout finds every weight.

layout-mp_rank_00_model_states.json     or layout-(bf16_)zero_pp_rank_0_mp_rank_00_optim_states.json
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import nn

from neoxargs.train.deepspeed import swap
from neoxargs.train.deepspeed.optimizer_layout import checkpoint_files, optimizer_layout
from neoxargs.train.parallel.pipeline import gpt_name, named_weights, stage_layers

PREFIX = "layout-"
Inventory = dict[str, Any]


def inventory(engine: Any) -> Inventory | None:
    """What this rank's optimizer file and the files of its weights hold; None where that is not known.

    kind, pieces: as in OptimizerLayout. weights: name -> its file, its key there, the slice's shape, its TensorShard.
    swapped: tensors that are not in the optimizer file but were on NVMe -> their file; `exp_avg-` and so on before its
    name.
    """
    mine = optimizer_layout(engine)
    if mine is None:
        return None
    states, optimizer = checkpoint_files(engine, mine)
    return {
        "kind": mine.kind,
        "dtype": str(next(engine.module.parameters()).dtype),
        "states": states,
        "optimizer": optimizer,
        "weights": _weights(engine.module, states),
        "pieces": [list(piece) for piece in mine.pieces],
        **({"swapped": swap.swapped_files(engine)} if engine.zero_nvme_offload_optimizer() else {}),
    }


def write(engine: Any, folder: Path, complete: bool) -> None:
    """On the ranks that write files of the optimizer. complete: are its states in them?"""
    writes = engine.save_zero_checkpoint or engine.save_non_zero_checkpoint
    if found := inventory(engine) if writes else None:
        (folder / _file(found)).write_text(json.dumps({**found, "complete": complete}), encoding="utf-8")


def read(folder: Path) -> list[Inventory]:
    """All of a checkpoint; none where it was written without."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob(f"{PREFIX}*.json"))]


def is_here(engine: Any, folder: Path) -> bool:
    """Would this run's files be the checkpoint's, as far as this rank can tell?"""
    ours = inventory(engine)
    if ours is None or not (folder / _file(ours)).exists():
        return False
    theirs = json.loads((folder / _file(ours)).read_text(encoding="utf-8"))
    return bool(theirs == {**json.loads(json.dumps(ours)), "complete": theirs["complete"]})


def _file(found: Inventory) -> str:
    stem = Path(found["optimizer"]).stem
    return f"{PREFIX}{stem.removesuffix('_model_states').removesuffix('_optim_states')}.json"


def _weights(module: Any, states: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if not hasattr(module, "_layer_specs"):
        return {name: [states, name, *_shape(weight)] for name, weight in named_weights(module).items()}
    for path, layer, number in stage_layers(module):
        file = Path(module.ckpt_layer_path("", number)).name
        here = {gpt_name(path, name): [file, name, *_shape(weight)] for name, weight in layer.named_parameters()}
        found = here | found  # a layer that is used again has the one file of where it stands first
    return found


def _shape(weight: nn.Parameter) -> tuple[list[int], list[int] | None]:
    cut = getattr(weight, "tensor_shard", None)
    return list(getattr(weight, "ds_shape", weight.shape)), list(cut) if cut else None
