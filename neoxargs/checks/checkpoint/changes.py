"""The parameters with another value than in the run that wrote a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from neoxargs.base.record import Record
from neoxargs.config.config import Config
from neoxargs.facts.lr_schedule import PARAMETERS as SCHEDULE
from neoxargs.facts.model import head_dim, mlp_width
from neoxargs.files.checkpoints import folder as checkpoint_folder
from neoxargs.registry import ABSENT, REGISTRY, Parameter
from neoxargs.resolve.compare.continuing import Level, changes_training, level_of, matters, meaning
from neoxargs.resolve.effects.unread import unread_by_run
from neoxargs.resolve.rules.synonyms import names_of_setting
from neoxargs.targets.wire_format import config_from_values

#: Parameters whose changes other checks report, or by which the user chooses between two schedules.
REPORTED_ELSEWHERE = {
    *SCHEDULE, "lr_decay_fraction", "override_lr_scheduler", "use_checkpoint_lr_scheduler", "tokenizer_type",
    "vocab_file", "merge_file",
}  # fmt: skip
#: Parameters that define a size only together: two ways to write the same size are no difference.
SIZES: Mapping[str, Callable[[Config], int]] = {
    "head_dim": lambda config: head_dim(config.shape),
    **dict.fromkeys(
        ("intermediate_size", "expansion_factor", "mlp_multiple_of", "exact_mlp_width"),
        lambda config: mlp_width(config.shape, config.mlp),
    ),
}


class Change(Record):
    """A parameter with two values."""

    name: str
    theirs: Any
    """The value in the checkpoint; None if it is not set there."""
    ours: Any
    level: Level


def recorded_config(values: Mapping[str, Any]) -> Config:
    """Return the configuration in a checkpoint's config.json, without the names of other versions."""
    return config_from_values(dict(_known(values, "")))


def changes(config: Config, recorded: Mapping[str, Any]) -> list[Change]:
    """Return the changes of the model and of how it is trained, in the registry's order. recorded: a config.json.

    A value that follows from another changed one is left out.
    """
    saved = recorded_config(recorded)
    unread = unread_by_run(config)
    differing = [change for names in _settings() if (change := _change(config, saved, names))]
    # The ranks compare SHAPE in any case.
    found = [change for change in differing if change.name in checkpoint_folder.SHAPE or not unread(change.name)]
    return [change for change in found if not _follows(config, change, found)]


def _known(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield the entries of nested values whose names this version knows."""
    for key, value in values.items():
        name = prefix + key
        if isinstance(value, dict) and name in REGISTRY.sections:
            yield key, dict(_known(value, name + "."))
        elif REGISTRY.find(name):
            yield key, value


def _settings() -> Iterator[tuple[str, ...]]:
    """Yield the names of each setting that is compared."""
    names = [name for name, parameter in REGISTRY.parameters.items() if _level(parameter) != "apart"]
    return iter(dict.fromkeys(names_of_setting(name) for name in names))


def _level(parameter: Parameter) -> Level:
    return "training" if changes_training(parameter) else level_of(parameter)


def _change(config: Config, saved: Config, names: tuple[str, ...]) -> Change | None:
    if REPORTED_ELSEWHERE & {*names} or ("data_path" in names and (config.get("text_path") or saved.get("text_path"))):
        return None  # the tokens of text_path are in the run folder
    for name in names:
        theirs, ours = _recorded(saved, name), config.get(name)
        known = theirs is not ABSENT and ours is not ABSENT and matters(name, config)
        if known and meaning(name, theirs) != meaning(name, ours) and not _same_size(config, saved, name):
            return Change(name, theirs, ours, _level(REGISTRY.parameters[name]))
    return None


def _recorded(saved: Config, name: str) -> Any:
    """Return a value of the checkpoint; ABSENT if it is not known.

    A record contains only the values that differ from the defaults, and always the number of heads.
    """
    if name in saved.values or "num_attention_heads" in saved.values:
        return saved.get(name)
    return ABSENT


def _same_size(config: Config, saved: Config, name: str) -> bool:
    size = SIZES.get(name)
    complete = {"num_attention_heads", "hidden_size", "intermediate_size"} <= saved.values.keys()
    return size is not None and complete and size(config) == size(saved)


def _follows(config: Config, change: Change, found: Sequence[Change]) -> bool:
    """Return whether a value is derived from one whose change is reported, and at least as serious."""
    if config.is_set(change.name):
        return False
    inputs = {*config.source(change.name).inputs} - {*names_of_setting(change.name)}
    serious = (other for other in found if other.level in ("weights", change.level))
    return any(inputs & {*names_of_setting(other.name)} for other in serious)
