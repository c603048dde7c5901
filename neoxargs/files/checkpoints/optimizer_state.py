"""Whether the optimizer state of a checkpoint is one of this run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from neoxargs.base.problems import Problem
from neoxargs.config.config import Config
from neoxargs.facts.optimizers import state_type
from neoxargs.facts.trained import is_frozen
from neoxargs.files.checkpoints import folder as checkpoint_folder


def trains_the_same_part(config: Config, checkpoint: Path) -> bool:
    """Return whether run and checkpoint are both of adapters, or both of the whole model; see frozen_model."""
    return is_frozen(config) == (checkpoint_folder.recorded_base(checkpoint) is not None)


def other_optimizer(config: Config, checkpoint: Path | None) -> Iterator[Problem]:
    """Yield an error if the run's optimizer cannot continue from the checkpoint's optimizer state."""
    saved = checkpoint_folder.configuration(checkpoint)
    if not checkpoint or saved is None or config.checkpoint.finetune or config.checkpoint.no_load_optim:
        return
    kind, other = config.optimizer.type or "Adam", saved.get("optimizer", {}).get("type") or "Adam"
    if state_type(kind) != state_type(other) and trains_the_same_part(config, checkpoint):
        what = f"load ({checkpoint}): the checkpoint's optimizer state was written by optimizer.type {other}"
        what += f", but this run uses optimizer.type {kind}"
        hint = "set no_load_optim: true to start with a fresh optimizer state"
        place, about = config.place("optimizer.type") or config.place("load"), ("load", "optimizer.type")
        yield Problem(what, place, hint, id="checkpoint-other-optimizer", about=about)
