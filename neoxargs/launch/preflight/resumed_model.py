"""Check that the checkpoint in `load` has the shape of the run's model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from neoxargs import checkpoint_folder
from neoxargs.problems import Problem
from neoxargs.resolve.config import Config


def other_model(config: Config) -> Iterator[Problem]:
    """The error that every rank would raise for a checkpoint of another model."""
    checkpoint = loaded_checkpoint(config)
    saved = checkpoint_folder.configuration(checkpoint) if checkpoint else None
    if saved is None:
        return
    for name, unrecorded in checkpoint_folder.SHAPE.items():
        theirs = saved.get(name, unrecorded)
        if theirs is not None and theirs != config.get(name):
            what = f"{name} is {config.get(name)}, but {theirs} in the checkpoint that is loaded ({checkpoint})"
            hint = f"set {name} to {theirs}, or load a different checkpoint"
            place = config.place(name) or config.place("load")
            yield Problem(what, place, hint, id="checkpoint-other-model", about=(name, "load"))


def loaded_checkpoint(config: Config) -> Path | None:
    """Return the checkpoint that the run loads, None if there is none."""
    folder, iteration = config.checkpoint.load, config.training.iteration
    if not folder:
        return None
    if iteration is None:
        return checkpoint_folder.newest(Path(folder))
    named = Path(folder, checkpoint_folder.tag(iteration))
    return named if named.is_dir() else None
