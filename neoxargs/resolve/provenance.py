"""Where a value comes from: the line that sets it, a default, or a rule and the values that the rule read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from neoxargs.config.config import Config
from neoxargs.config.dialect import NAMES
from neoxargs.facts.description import batch_equation
from neoxargs.registry import ABSENT, REGISTRY
from neoxargs.registry.history import changes, default_at
from neoxargs.resolve.rules import DERIVATIONS
from neoxargs.resolve.rules.synonyms import names_of_setting

#: Limits of the tree of sources: inputs shown per value, and levels.
MAX_INPUTS = 6
MAX_DEPTH = 4
BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


@dataclass
class Origin:
    """A value, its source, and the origins of the values it was derived from."""

    name: str
    value: Any
    why: str
    inputs: list[Origin] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        described = {"name": self.name, "value": self.value, "why": self.why}
        return described | ({"from": [origin.to_json() for origin in self.inputs]} if self.inputs else {})

    def lines(self, indent: str = "") -> Iterator[str]:
        """Yield the tree below this value, one line per value."""
        for origin in self.inputs:
            yield f"{indent}{origin.name} {json_words(origin.value)}: {origin.why}"
            yield from origin.lines(indent + "  ")


def origin(name: str, config: Config, above: tuple[str, ...] = ()) -> Origin:
    """Return the tree of a value; `above` are the names on the path to it, which are not repeated below."""
    source = config.source(name)
    tree = Origin(name, config.get(name), source_of(name, config))
    if source.kind == "derived" and not is_default(name, config) and len(above) < MAX_DEPTH:
        tree.inputs = [origin(read, config, (*above, name)) for read in _inputs(name, config) if read not in above]
    return tree


def source_of(name: str, config: Config) -> str:
    """Return where the value was set, the rule that derived it, or whose default it is."""
    source = config.source(name)
    is_auto = name in config.auto and "auto" not in source.text  # the reason of some rules explains `auto` already
    auto = " (set to `auto`)" if is_auto else ""
    if source.kind == "default" or is_default(name, config):
        return (_dialect_default(name, config) or "default") + auto
    if source.kind != "derived":
        return str(source)
    return f"derived: {batch_equation(config) if name in BATCH else source.text}{auto}"


def is_default(name: str, config: Config) -> bool:
    """Whether the value is the dialect's default, even if a rule returned it, and nothing that is set led to it."""
    if config.dialect is None or config.is_set(name) or config.get(name) is None:
        return config.source(name).kind == "default"
    names = names_of_setting(name)
    defaults = [default_at(other, config.dialect.date) for other in names]
    # A synonym depends on its other names; any other value on the lines of the files that its rule read.
    depends = any(config.is_set(other) for other in names) if len(names) > 1 else config.place(name) is not None
    return not depends and config.get(name) in defaults


def _dialect_default(name: str, config: Config) -> str:
    """Return `neox-2021's default; neox-2026 has 1.0` if the default depends on the dialect, otherwise ''."""
    if config.dialect is None or not changes(name):
        return ""
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


def json_words(value: Any) -> str:
    """Return a value as JSON, truncated to 60 characters."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else text[:58] + " …"


def reasons(name: str) -> list[str]:
    """Return the reasons of the rules that can derive a parameter."""
    return [rule.reason for rule in DERIVATIONS if name in rule.results]
