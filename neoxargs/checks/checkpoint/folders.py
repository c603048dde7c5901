"""Checks of `save` and `load`: a checkpoint that would be overwritten, and one that is missing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from neoxargs.base.problems import SET, Problem
from neoxargs.config.config import Config
from neoxargs.facts.trained import is_frozen
from neoxargs.files.checkpoints import folder as checkpoint_folder
from neoxargs.files.neox_checkpoint.files import is_neox, neox_checkpoints


def overwritten_checkpoint(config: Config) -> Iterator[Problem]:
    """A run that saves to a folder of checkpoints without continuing the newest would mix its files with theirs."""
    options = config.checkpoint
    save, load = options.save, options.load
    if save and (theirs := neox_checkpoints(Path(save))):
        # The run would replace those of the same iterations, name its own in `latest`, and remove the others if
        # `keep_last_n_checkpoints` is set.
        what = f"save ({save}) contains checkpoints of GPT-NeoX ({theirs[-1].name}), which a run must not mix with "
        what += "its own"
        hint = "set save to a different folder"
        hint += "" if load else f", and load: {save} to continue from these checkpoints"
        yield Problem(what, config.place("save"), hint, id="save-among-gpt-neox", about=("save", "load"))
        return
    # With `finetune`, iterations begin again at 0, so the files of the same iterations would be replaced.
    if save and load and _same_folder(load, save) and not options.finetune:
        yield from _overwritten_newer(config, save)
    elif save and (iteration := _last_iteration(Path(save))) is not None:
        other = "set save to a different folder"
        hint = other if load else f"set load: {save} to continue from this checkpoint, or {other}"
        what = f"save ({save}) already holds a checkpoint from iteration {iteration}, which the run would overwrite"
        yield Problem(what, config.place("save"), hint, id="checkpoint-overwritten", about=("save", "load"))


def _overwritten_newer(config: Config, save: str) -> Iterator[Problem]:
    """A warning if the run continues from an older checkpoint, and will not keep the newer ones."""
    start, place = config.training.iteration, config.place("iteration")
    # With keep_last_n_checkpoints, checkpoints of later iterations are removed first.
    last = float("inf") if config.checkpoint.keep_last_n_checkpoints else config.training.train_iters
    found = [checkpoint_folder.iteration_of(path) for path in checkpoint_folder.checkpoints(Path(save))]
    lost = [checkpoint_folder.tag(newer) for newer in found if start is not None and start < newer <= last]
    if lost:
        what = f"iteration ({start}): save ({save}) contains newer checkpoints, which the run overwrites or removes: "
        hint = "set save to a different folder to keep them, or remove iteration to continue from the newest"
        about = ("iteration", "save", "load")
        yield Problem(what + ", ".join(lost), place, hint, (), "warning", id="newer-checkpoints-lost", about=about)


def missing_checkpoint(config: Config) -> Iterator[Problem]:
    """`load` without a checkpoint; allowed if it is the same as `save`, because the first start has none yet."""
    load, save = config.checkpoint.load, config.checkpoint.save
    if load and _last_iteration(Path(load)) is not None:
        yield from _missing_iteration(config, "load", load)
    if not load or (save and _same_folder(load, save)):
        return
    if _last_iteration(Path(load)) is None and not is_neox(Path(load)):
        hint = "remove load to start from scratch, or set load and save to the same folder: the run then continues if "
        hint += "the folder has a checkpoint, and starts from scratch if not"
        what = f"load ({load}): there is no checkpoint in this folder"
        hint = _of_one_checkpoint("load", Path(load)) or hint
        yield Problem(what, config.place("load"), hint, id="checkpoint-missing", about=("load",))


def no_checkpoint_to_read(config: Config) -> Iterator[Problem]:
    """A missing checkpoint for generate.py and eval.py, which read from `load` or, if that is not set, from `save`."""
    options = config.checkpoint
    name = "load" if options.load else "save"
    folder = options.load or options.save
    if not folder:
        what = "there is no checkpoint to read: neither load nor save is set"
        hint = "set load to a folder with a checkpoint"
        yield Problem(what, hint=hint, id="checkpoint-missing", about=("load",))
    elif is_neox(Path(folder)):
        return  # its contents are checked by neox_checkpoint
    elif _last_iteration(Path(folder)) is None:
        hint = "set load to a folder with a checkpoint; to write one, run deepy train.py with save: FOLDER"
        hint = _of_one_checkpoint(name, Path(folder)) or hint
        what = f"{name} ({folder}): there is no checkpoint in this folder"
        yield Problem(what, config.place(name), hint, id="checkpoint-missing", about=(name,))
    else:
        yield from _missing_iteration(config, name, folder)


def _of_one_checkpoint(name: str, path: Path) -> str:
    """Return the hint for the folder of one checkpoint in place of the folder with all of them, else ""."""
    if path not in checkpoint_folder.checkpoints(path.parent):
        return ""
    return f"set {name}: {path.parent} and iteration: {checkpoint_folder.iteration_of(path)}"


def _missing_iteration(config: Config, name: str, folder: str) -> Iterator[Problem]:
    """An error if there is no checkpoint of the chosen iteration in a folder of checkpoints."""
    iteration = config.training.iteration
    if iteration is not None and not (wanted := Path(folder, checkpoint_folder.tag(iteration))).is_dir():
        hint = f"set iteration to one that {folder} contains; the newest is {_last_iteration(Path(folder))}"
        what, about = f"iteration ({iteration}): there is no checkpoint {wanted}", ("iteration", name)
        yield Problem(what, config.place("iteration"), hint, id="checkpoint-missing", about=about)


def unread_checkpoint(config: Config) -> Iterator[Problem]:
    """A warning if the model that a run started from is read, although the run has saved checkpoints of its own."""
    options, place = config.checkpoint, config.place("load")
    load, save = options.load, options.save
    if not (options.finetune and load and save) or _same_folder(load, save) or is_frozen(config):
        return
    # --set load=... is the answer to this warning.
    chosen = place is not None and place.file == SET
    if not chosen and _last_iteration(Path(save)) is not None:
        what = f"the model is read from load ({load}), although save ({save}) contains checkpoints of this run"
        hint = f"to read the newest of these checkpoints instead, pass --set load={save}"
        yield Problem(what, place, hint, severity="warning", id="checkpoint-unread", about=("load", "save"))


def _same_folder(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)  # Path.resolve raises for links in a circle


def _last_iteration(folder: Path) -> int | None:
    """Return the iteration of the newest checkpoint in a folder, damaged or not; None if there is none."""
    found = checkpoint_folder.checkpoints(folder)
    return checkpoint_folder.iteration_of(found[-1]) if found else None
