"""Where a value comes from: the line that says it, whose default it is, or the rule and what it read, and so on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from neoxargs.launch.report import summary
from neoxargs.registry import ABSENT, REGISTRY
from neoxargs.registry.history import changes, default_at
from neoxargs.resolve.config import Config
from neoxargs.resolve.dialect import NAMES
from neoxargs.resolve.rules import DERIVATIONS
from neoxargs.resolve.rules.synonyms import names_of_setting

#: So many of the values that another was derived from are shown, and so many steps back.
MOST_INPUTS = 6
DEPTH = 4
BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


@dataclass
class Origin:
    """A value, why it is that, and the values that it was derived from."""

    name: str
    value: Any
    why: str
    inputs: list[Origin] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        described = {"name": self.name, "value": self.value, "why": self.why}
        return described | ({"from": [origin.to_json() for origin in self.inputs]} if self.inputs else {})

    def lines(self, indent: str = "") -> Iterator[str]:
        """The tree below this value, a line for each."""
        for origin in self.inputs:
            yield f"{indent}{origin.name} {json_words(origin.value)}: {origin.why}"
            yield from origin.lines(indent + "  ")


def origin(name: str, config: Config, above: tuple[str, ...] = ()) -> Origin:
    """The tree of a value; nothing stands in it below itself."""
    source = config.source(name)
    tree = Origin(name, config.get(name), because(name, config))
    if source.kind == "derived" and not is_default(name, config) and len(above) < DEPTH:
        tree.inputs = [origin(read, config, (*above, name)) for read in _read(name, config) if read not in above]
    return tree


def because(name: str, config: Config) -> str:
    """Where the value was written, the rule that derived it, or whose default it is."""
    source = config.source(name)
    is_left = name in config.auto and "auto" not in source.text  # a rule about `auto` says so itself
    left_to = "; `auto` is written, which leaves it to that" if is_left else ""
    if source.kind == "default" or is_default(name, config):
        return (_whose_default(name, config) or "default") + left_to
    if source.kind != "derived":
        return str(source)
    return f"derived: {summary.batch_equation(config) if name in BATCH else source.text}{left_to}"


def is_default(name: str, config: Config) -> bool:
    """Is it what it is in any case, although a rule may have said so? Nothing that was written leads to it."""
    if config.dialect is None or config.is_set(name) or config.get(name) is None:
        return config.source(name).kind == "default"
    names = names_of_setting(name)
    usual = [default_at(other, config.dialect.date) for other in names]
    led_to = any(config.is_set(other) for other in names) if len(names) > 1 else config.place(name) is not None
    return not led_to and config.get(name) in usual


def _whose_default(name: str, config: Config) -> str:
    """`neox-2021's default; neox-2026 has 1.0` where the dialect decides, else nothing."""
    if config.dialect is None or not changes(name):
        return ""
    defaults = {dialect: default_at(name, day) for dialect, day in NAMES.items()}
    others = [f"{dialect} has {json.dumps(v)}" for dialect, v in defaults.items() if v != config.get(name)]
    return "; ".join([f"{config.dialect.name}'s default", *others])


def _read(name: str, config: Config) -> list[str]:
    """What a value was derived from; written ones first."""
    known = [read for read in dict.fromkeys(config.source(name).inputs) if read in REGISTRY.parameters]
    known = [read for read in known if read != name and config.get(read) not in (ABSENT, None)]
    known = [read for read in known if config.is_set(read) or read not in names_of_setting(name)]
    return sorted(known, key=lambda read: (not config.is_set(read), config.place(read) is None))[:MOST_INPUTS]


def json_words(value: Any) -> str:
    """A value as JSON, a long one cut."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else text[:58] + " …"


def reasons(name: str) -> list[str]:
    """What the rules that can derive a parameter say of it."""
    return [rule.reason for rule in DERIVATIONS if name in rule.results]
