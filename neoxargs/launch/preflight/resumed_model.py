"""Check which checkpoint in `load` the run continues from, and that it has the shape of the run's model."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

from neoxargs import checkpoint_folder
from neoxargs.problems import Problem
from neoxargs.resolve.config import Config


def other_model(config: Config, checkpoint: Path | None) -> Iterator[Problem]:
    """The error that every rank would raise for a checkpoint of another model."""
    saved = checkpoint_folder.configuration(checkpoint) if checkpoint else None
    if saved is None:
        return
    for name, unrecorded in checkpoint_folder.SHAPE.items():
        theirs = saved.get(name, unrecorded)  # None: not recorded
        if theirs is not None and theirs != config.get(name):
            what = f"{name} is {config.get(name)} in this configuration, "
            what += f"but {theirs} in the checkpoint to be loaded ({checkpoint})"
            hint = f"set {name} to {theirs}, or load a different checkpoint"
            place = config.place(name) or config.place("load")
            yield Problem(what, place, hint, id="checkpoint-other-model", about=(name, "load"))


def skipped_checkpoints(config: Config, chosen: Path | None) -> Iterator[Problem]:
    """A warning for each newer checkpoint that is damaged, and for a `latest` that names none."""
    folder = config.checkpoint.load
    if not folder or chosen is None or config.training.iteration is not None:  # chosen by hand
        return
    if named := checkpoint_folder.missing_latest(Path(folder)):
        yield _skipped(config, f"the file `latest` points to {named}, which does not exist", chosen)
    # Those that come before the chosen one, in the order in which they are tried.
    for candidate in takewhile(lambda candidate: candidate != chosen, checkpoint_folder.candidates(Path(folder))):
        damage = checkpoint_folder.damage(candidate)
        yield _skipped(config, f"the checkpoint {candidate.name} is damaged: {damage}", chosen)


def _skipped(config: Config, why: str, chosen: Path) -> Problem:
    what = f"load ({config.checkpoint.load}): {why}; the run continues from {chosen.name}"
    hint = "set iteration to load a specific checkpoint"
    return Problem(what, config.place("load"), hint, severity="warning", id="checkpoint-skipped", about=("load",))


def loaded_checkpoint(config: Config) -> Path | None:
    """Return the checkpoint that the run loads, None if there is none. Looks at every file of a checkpoint."""
    return _in_folder(config.checkpoint.load, config.training.iteration)


def checkpoint_to_read(config: Config) -> Path | None:
    """Return the checkpoint that generate.py and eval.py load, None if there is none."""
    return _in_folder(config.checkpoint.load or config.checkpoint.save, config.training.iteration)


def _in_folder(folder: str | None, iteration: int | None) -> Path | None:
    if not folder:
        return None
    if iteration is None:
        return checkpoint_folder.newest(Path(folder))
    named = Path(folder, checkpoint_folder.tag(iteration))
    return named if named.is_dir() else None
