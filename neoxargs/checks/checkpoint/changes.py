"""The parameters with another value than in the run that wrote a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from neoxargs.config.config import Config
from neoxargs.files.checkpoints import folder as checkpoint_folder
from neoxargs.registry import ABSENT, REGISTRY
from neoxargs.resolve.compare.apart import REPORTED_ELSEWHERE, names
from neoxargs.resolve.compare.continuing import Level, changes_training, level_of, matters
from neoxargs.resolve.compare.differences import Difference, differences, same_function
from neoxargs.resolve.rules.rotary import READ_ORIGINAL
from neoxargs.resolve.rules.synonyms import names_of_setting
from neoxargs.targets.wire_format import config_from_values


def recorded_config(values: Mapping[str, Any]) -> Config:
    """Return the configuration in a checkpoint's config.json, without the names of other versions."""
    return config_from_values(dict(_known(values, "")))


def changes(config: Config, recorded: Mapping[str, Any]) -> dict[Level, list[Difference]]:
    """Return the changes of the model and of how it is trained, in the registry's order. recorded: a config.json.

    The first value of each is the checkpoint's. A value that follows from another changed one is left out.
    """
    levels: dict[str, Level] = {
        name: "training" if changes_training(parameter) else level_of(parameter)
        for name, parameter in REGISTRY.parameters.items()
    }
    elsewhere = {other for name in names(REPORTED_ELSEWHERE) for other in names_of_setting(name)}
    apart = elsewhere | {name for name, level in levels.items() if level == "apart"}
    found: dict[Level, list[Difference]] = {"weights": [], "adapted": [], "training": []}
    for each in differences(_comparable(recorded_config(recorded)), config, apart, same_function):
        # The ranks compare SHAPE in any case.
        is_read = each.is_read[1] or each.name in checkpoint_folder.SHAPE
        if each.name == "max_position_embeddings" and _scales_from_longest(config):
            found["adapted"].append(each)
        elif is_read and matters(each.name, config) and config.get(each.name) is not ABSENT:
            found[levels[each.name]].append(each)
    # What follows from a change that is at least as serious.
    return {
        level: [each for each in some if not _follows(config, each, [*found["weights"], *some])]
        for level, some in found.items()
    }


def _scales_from_longest(config: Config) -> bool:
    """Return whether the angles of scaled positions depend on max_position_embeddings."""
    options = config.rope_scaling
    longest = options.original_max_position_embeddings is None
    longest |= options.rope_type == "longrope" and options.factor is None
    return config.embedding.pos_emb == "rotary" and options.rope_type in READ_ORIGINAL and longest


def _known(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield the entries of nested values whose names this version knows."""
    for key, value in values.items():
        name = prefix + key
        if isinstance(value, dict) and name in REGISTRY.sections:
            yield key, dict(_known(value, name + "."))
        elif REGISTRY.find(name):
            yield key, value


def _comparable(saved: Config) -> Config:
    """Return the configuration of a checkpoint, marking the values that are not known.

    A record contains only the values that differ from the defaults, and always the number of heads.
    """
    is_record = "num_attention_heads" in saved.values
    known = REGISTRY.parameters.keys() if is_record else saved.values.keys()
    unknown = {name for name in REGISTRY.parameters if name not in known or saved.get(name) is ABSENT}
    return Config(saved.values, saved.sections, broken=frozenset(unknown))


def _follows(config: Config, change: Difference, serious: Sequence[Difference]) -> bool:
    """Return whether a value is derived from one of the serious changes."""
    if config.is_set(change.name):
        return False
    inputs = {*config.source(change.name).inputs} - {*names_of_setting(change.name)}
    return any(inputs & {*names_of_setting(other.name)} for other in serious)
