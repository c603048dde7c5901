"""The weights of a frozen model, from the checkpoint that `base_checkpoint` names or that a checkpoint records.

Every file is compared with its checksum before a weight is used, as in the checkpoint of the run itself. A damaged
checkpoint is an error: another one in the same folder would be another model.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from neoxargs.base.problems import Problem, Problems
from neoxargs.config.config import Config
from neoxargs.files.checkpoints import folder as checkpoint_folder
from neoxargs.files.checkpoints.folder import Base
from neoxargs.train.checkpoint import inventory
from neoxargs.train.checkpoint.neox.loading import weights_of
from neoxargs.train.checkpoint.weights_by_name import SavedWeights, WeightsByRank

#: Returns what is wrong with a checkpoint, "" if nothing is: `checkpoint_folder.verify`, or one for all ranks together.
Verify = Callable[[Path], str]


class BaseWeights(NamedTuple):
    """A frozen model."""

    base: Base
    weights: WeightsByRank


def of_run(config: Config, checkpoint: Path | None, verify: Verify) -> BaseWeights | None:
    """Return the frozen model of a run; None if it has the initial weights of `seed`.

    checkpoint: the run's checkpoint that is loaded; None if it starts. Raises Problems if the model is not there, or
    damaged.
    """
    recorded = checkpoint_folder.recorded_base(checkpoint) if checkpoint else None
    root = config.checkpoint.base_checkpoint
    folder = checkpoint_folder.base_folder(root, recorded)
    if folder is None:
        return None
    found = weights_in(config, folder, verify)
    if found is None:
        frozen = f"load ({checkpoint}) was trained on the frozen model in {folder}, but that folder"
        what = f"{f'base_checkpoint ({folder})' if root else frozen} contains no checkpoint with a weight index"
        what += f" ({inventory.PREFIX}*.json)"
        hint = "set base_checkpoint to the folder of the model's checkpoint"
        raise Problems(Problem(what, hint=hint, id="base-checkpoint-missing", about=("base_checkpoint",)))
    return found


def weights_in(config: Config, folder: Path, verify: Verify) -> BaseWeights | None:
    """Return the weights of a checkpoint, or of the newest one in a folder; None if none has a weight index.

    Raises Problems if it is damaged.
    """
    # None unless the folder is one of GPT-NeoX; those have no weight index.
    if theirs := weights_of(config, folder, None):
        return BaseWeights(Base(folder.resolve(), ""), theirs)
    found = checkpoint_folder.named_by(folder)
    if found is None:
        return None
    require_undamaged(found, verify)
    inventories = inventory.read_together(found)
    return BaseWeights(Base.of(found), SavedWeights(found, inventories)) if inventories else None


def require_undamaged(checkpoint: Path, verify: Verify) -> None:
    """Raise Problems if the checkpoint of a frozen or reference model is damaged."""
    if damage := verify(checkpoint):
        what = f"the model in {checkpoint} cannot be loaded: {damage}"
        hint = "restore this checkpoint from a copy; an adapter, a prompt or a preference belongs to exactly this model"
        raise Problems(Problem(what, hint=hint, id="base-checkpoint-damaged", about=("base_checkpoint", "load")))
