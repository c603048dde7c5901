"""Check that a run that trains adapters or a soft prompt finds its frozen model, and adapters that fit it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from neoxargs.base.problems import Problem
from neoxargs.checks.checkpoint.model import form, other_model
from neoxargs.checks.checkpoint.vocabulary import other_vocabulary
from neoxargs.config.config import Config
from neoxargs.facts import lora
from neoxargs.facts.trained import is_frozen
from neoxargs.files.checkpoints import folder as checkpoint_folder
from neoxargs.files.checkpoints.folder import Base
from neoxargs.files.neox_checkpoint.files import is_neox
from neoxargs.registry import REGISTRY
from neoxargs.resolve.compare.differences import differences

#: Parameters without which a checkpoint's adapters do not fit, or compute something else.
FITTING = ("lora.rank", "lora.targets", "soft_prompt_tuning.num_tokens")
SCALING = ("lora.alpha", "lora.rank_stabilized")
_SAME_CONFIGURATION = "use the configuration of the run that wrote the checkpoint"


def frozen_model_problems(config: Config, checkpoint: Path | None, training: bool = True) -> Iterator[Problem]:
    """Yield the errors that every rank would raise. checkpoint: the one that is loaded. training: False to generate."""
    record = checkpoint_folder.recorded_base(checkpoint) if checkpoint else None
    if not is_frozen(config):
        if record is not None:
            yield _only_trained(config, checkpoint, record)
        return
    yield from _rank_above_sides(config)
    base = _base(config, record)
    if base is None and config.checkpoint.base_checkpoint:
        what = f"base_checkpoint ({config.checkpoint.base_checkpoint}): there is no checkpoint in this folder"
        yield Problem(what, config.place("base_checkpoint"), id="base-checkpoint-missing", about=("base_checkpoint",))
    elif record is not None and record.folder is not None and base is None:
        what = f"the frozen model of {checkpoint} was loaded from {record.folder}, which no longer has a checkpoint"
        hint, about = "set base_checkpoint to the folder with the model's checkpoint", ("load", "base_checkpoint")
        yield Problem(what, config.place("load"), hint, id="base-checkpoint-missing", about=about)
    if base is not None and base.folder is not None:
        yield from _other_base(config, base.folder, checkpoint)
    if checkpoint is not None and record is None:
        yield from _full_model(config, checkpoint, training)
    if checkpoint is not None and record is not None:
        yield from _unfitting(config, checkpoint, record, base, new_run=training and config.checkpoint.finetune)


def _base(config: Config, record: Base | None) -> Base | None:
    """Return the checkpoint of the frozen model; None if there is none, or it is not there."""
    folder = checkpoint_folder.base_folder(config.checkpoint.base_checkpoint, record)
    if folder is None:
        return None
    found = folder if is_neox(folder) else checkpoint_folder.named_by(folder)
    return Base.of(found) if found else None


def _other_base(config: Config, base: Path, checkpoint: Path | None) -> Iterator[Problem]:
    """Yield in what the frozen model is another one, except what is reported of the adapters' checkpoint."""
    checks = (other_model, other_vocabulary)
    reported = {problem.about for check in checks for problem in check(config, checkpoint)}
    yield from (problem for check in checks for problem in check(config, base) if problem.about not in reported)


def _rank_above_sides(config: Config) -> Iterator[Problem]:
    """Yield a warning if the product of A and B cannot have the rank of the adapters."""
    # The rank of B A is at most the smaller side of the matrix that it is added to.
    sides = {target.module: target.smallest_side for target in lora.targets(config)}
    module = min(sides, key=lambda name: sides[name], default="")
    if module and config.lora.rank > sides[module]:
        what = f"lora.rank ({config.lora.rank}) is larger than the smaller dimension of a target matrix "
        what += f"({sides[module]} in {module})"
        hint = f"set lora.rank to at most {sides[module]}, which can express the same changes with fewer weights"
        about = ("lora.rank", "lora.targets")
        yield Problem(what, config.place("lora.rank"), hint, severity="warning", id="lora-rank-above-side", about=about)


def _only_trained(config: Config, checkpoint: Path | None, record: Base) -> Problem:
    saved = checkpoint_folder.configuration(checkpoint) or {}
    rank = _recorded(saved).lora.rank
    kind, name = (f"adapters (lora.rank {rank})", "lora") if rank else ("a soft prompt", "soft_prompt_tuning")
    what = f"load ({checkpoint}): the checkpoint contains only {kind}, not a model"
    settings = ", ".join(f"{key}: {form(value)}" for key, value in saved.get(name, {}).items())
    hint = f"set {name}: {{{settings}}}, as in the run that wrote the checkpoint" if settings else _SAME_CONFIGURATION
    hint += f", or load the frozen model's checkpoint{f' ({record.folder})' if record.folder else ''}"
    return Problem(what, config.place("load"), hint, id="checkpoint-of-adapters", about=("load", "lora.rank"))


def _full_model(config: Config, checkpoint: Path, training: bool) -> Iterator[Problem]:
    """Yield the problem of a checkpoint that contains a model without adapters, or without a prompt."""
    name = "lora" if config.lora.rank else "soft_prompt_tuning"
    if _may_contain(checkpoint, name, training):
        return
    about = ("load", "base_checkpoint")
    trained = "adapters" if name == "lora" else "soft prompt"
    what = f"load ({checkpoint}): the checkpoint contains a model, but no {trained}"
    if not training:
        hint = f"{_own_folder(config, name)}, or remove {name}"
        yield Problem(what, config.place("load"), hint, id="checkpoint-without-adapters", about=about)
    elif not config.checkpoint.finetune or config.checkpoint.base_checkpoint:
        hint = "set base_checkpoint to this folder, and remove load or set it to a folder with checkpoints of this run"
        yield Problem(what, config.place("load"), hint, id="checkpoint-without-adapters", about=about)


def _may_contain(checkpoint: Path, name: str, training: bool) -> bool:
    values = checkpoint_folder.configuration(checkpoint)
    if values is None:  # of another program, whose checkpoints can contain a soft prompt, but no adapters
        return training or name != "lora"
    return bool(_recorded(values).lora.rank if name == "lora" else values.get(name))


def _own_folder(config: Config, name: str) -> str:
    """Return a hint where the checkpoints of the run are."""
    save = config.checkpoint.save
    newest = checkpoint_folder.newest(Path(save)) if save else None
    if newest and checkpoint_folder.recorded_base(newest):
        return f"set load to {save} (the value of save), which contains checkpoints of this run"
    return f"set load to the folder with the checkpoints of a run that uses {name}"


def _unfitting(config: Config, checkpoint: Path, record: Base, base: Base | None, new_run: bool) -> Iterator[Problem]:
    """Yield what keeps adapters from working as they did. new_run: they only give the weights to start from."""
    saved = _recorded(checkpoint_folder.configuration(checkpoint) or {})
    # A new run may scale the adapters that it starts from in another way.
    compared = FITTING if new_run else (*FITTING, *SCALING)
    for each in differences(saved, config, REGISTRY.parameters.keys() - {*compared}):
        name, (theirs, ours) = each.name, map(form, each.values)
        what = f"{name} is {ours} here, but {theirs} in the checkpoint to be loaded ({checkpoint})"
        place, hint = config.place(name) or config.place("load"), f"set {name} to {theirs}"
        yield Problem(what, place, hint, id="checkpoint-other-adapters", about=(name, "load"))
    # Adapters are differences to the weights of one model.
    if base is not None and base.differs_from(record) and not new_run:
        what = f"the adapters in {checkpoint} were trained with the model in {record.folder}, not with {base.folder}"
        hint = f"set base_checkpoint to {record.folder}, or set finetune: true to train the adapters for {base.folder}"
        if base.folder == record.folder:
            what = f"the adapters in {checkpoint} were trained with the model in {base.folder}, which has changed since"
            hint = "restore that model from a copy, or set base_checkpoint to one; or set finetune: true to train the "
            hint += "adapters for the model that is there now"
        place = config.place("base_checkpoint") or config.place("load")
        yield Problem(what, place, hint, id="base-checkpoint-differs", about=("base_checkpoint", "load"))


def _recorded(values: dict[str, Any]) -> Config:
    from neoxargs.checks.checkpoint.changes import recorded_config  # most checks load no checkpoint

    return recorded_config(values)
