"""Where a value comes from: the line that sets it, a default, or a rule and the values that the rule read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from neoxargs.base.record import Record
from neoxargs.base.text import shorten
from neoxargs.config.config import Config
from neoxargs.config.dialect import NAMES
from neoxargs.config.value import Value
from neoxargs.facts.description import batch_equation
from neoxargs.facts.layer_kinds import attention_layers
from neoxargs.registry import ABSENT, REGISTRY
from neoxargs.registry.history import SEED, changes, default_at
from neoxargs.resolve.effects.switched_off import switched_off_by
from neoxargs.resolve.rules.synonyms import names_of_setting

#: Limits of the tree of sources: inputs shown per value, and levels.
MAX_INPUTS = 6
MAX_DEPTH = 4
BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


class Origin(Record):
    """A value, its source, and the origins of the values it was derived from."""

    name: str
    value: Any
    why: str
    inputs: tuple[Origin, ...] = ()


def tree(name: str, config: Config, above: tuple[str, ...] = ()) -> Origin:
    """Return the origin of a value; `above` are the names on the path to it, which are not repeated below."""
    inputs: list[str] = []
    if config.source(name).kind == "derived" and not is_default(name, config) and len(above) < MAX_DEPTH:
        inputs = [read for read in _inputs(name, config) if read not in above]
    below = (tree(read, config, (*above, name)) for read in inputs)
    return Origin(name, config.get(name), source_of(name, config), tuple(below))


def source_of(name: str, config: Config) -> str:
    """Return where the value was set, the rule that derived it, or whose default it is."""
    source = config.source(name)
    if config.is_set(name) or config.dialect is None:
        return str(source)
    is_auto = name in config.auto and "auto" not in source.text  # the reason of some rules explains `auto` already
    auto = " (set to `auto`)" if is_auto else ""
    if is_default(name, config):
        return (_dialect_default(name, config) or "default") + auto
    return f"derived: {batch_equation(config) if name in BATCH else source.text}{auto}"


def derived(config: Config) -> Iterator[tuple[str, Value]]:
    """Yield the values that follow from set ones, without synonyms, defaults and those without effect.

    A rule with several results gives the same reason for each; equal values of it are yielded once.
    """
    yielded: set[tuple[str, str]] = set()
    for parameter, value in config.items():
        name, source = parameter.name, value.source
        if source.kind != "derived" or equals_default(name, config) or _is_synonym(name, config):
            continue
        key = source.text, shorten(value.value, None)
        if key not in yielded and not _has_no_effect(name, config) and not _repeats_itself(name, config):
            yielded.add(key)
            yield name, value


def is_default(name: str, config: Config) -> bool:
    """Whether the value is the dialect's default, even if a rule returned it, and nothing that is set led to it."""
    if config.source(name).kind != "derived" or config.get(name) is None:
        return config.source(name).kind == "default"
    names = names_of_setting(name)
    # A synonym depends on its other names; any other value on the lines of the files that its rule read.
    depends = any(config.is_set(other) for other in names) if len(names) > 1 else config.place(name) is not None
    return not depends and equals_default(name, config)


def equals_default(name: str, config: Config) -> bool:
    """Whether the value equals the default of the files' dialect, for any name of the setting."""
    day = config.dialect.date if config.dialect else SEED
    return config.get(name) in [default_at(other, day) for other in names_of_setting(name)]


def _dialect_default(name: str, config: Config) -> str:
    """Return `neox-2021's default; neox-2026 has 1.0` if the default depends on the dialect, otherwise ''."""
    if not changes(name):
        return ""
    assert config.dialect
    defaults = {dialect: default_at(name, day) for dialect, day in NAMES.items()}
    words = {dialect: "derives it" if v is ABSENT else f"has {json.dumps(v)}" for dialect, v in defaults.items()}
    others = [f"{dialect} {words[dialect]}" for dialect, v in defaults.items() if v != config.get(name)]
    return "; ".join([f"{config.dialect.name}'s default", *others])


def _inputs(name: str, config: Config) -> list[str]:
    """Return the parameters that a value was derived from, those that are set first."""
    inputs = [read for read in dict.fromkeys(config.source(name).inputs) if read in REGISTRY.parameters]
    inputs = [read for read in inputs if read != name and config.get(read) not in (ABSENT, None)]
    inputs = [read for read in inputs if config.is_set(read) or read not in names_of_setting(name)]
    return sorted(inputs, key=lambda read: (not config.is_set(read), config.place(read) is None))[:MAX_INPUTS]


def _is_synonym(name: str, config: Config) -> bool:
    """Whether a rule only copied the value from one name of the setting to another."""
    names = names_of_setting(name)
    # The batch equation has equal inputs and results too, but they are not synonyms.
    return len(names) > 1 and name not in BATCH and {*names} <= {*config.source(name).inputs}


def _has_no_effect(name: str, config: Config) -> bool:
    """Whether a derived value concerns no layer of the model, or nothing else of the run."""
    # Recurrent layers use intermediate_size only if it is set.
    unused_width = name == "intermediate_size" and not attention_layers(config)
    replaced = name == "train_data_weights" and bool(config.get("train_data_mixture"))
    return unused_width or replaced or switched_off_by(config, name) is not None


def _repeats_itself(name: str, config: Config) -> bool:
    """Whether the value equals that of another parameter, or does not depend on any set parameter."""
    inputs = config.source(name).inputs
    others = [other for other in inputs if other != name and other in REGISTRY.parameters]
    if not any(config.is_set(other) for other in others):
        return True
    given = [config.get(other) for other in others if config.is_set(other) or equals_default(other, config)]
    return name in inputs and config.get(name) in given
