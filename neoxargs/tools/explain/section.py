"""A section: its keys, each with the first words of its meaning, and what they are in these files."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from typing import Any

from neoxargs.registry import ABSENT, REGISTRY
from neoxargs.resolve.config import Config
from neoxargs.tools.explain.provenance import because
from neoxargs.tools.explain.render import WIDTH


def to_json(name: str, config: Config | None) -> dict[str, Any]:
    """For a program."""
    values = {"values here": {full: value for full, (value, _) in _values_here(name, config).items()}} if config else {}
    return {"name": name, "keys": _inside(name, REGISTRY.parameters), "sections": _sections(name), **values}


def to_text(name: str, config: Config | None) -> str:
    """For a person."""
    keys = {full: REGISTRY.parameters[full].description for full in _inside(name, REGISTRY.parameters)}
    keys |= dict.fromkeys(_sections(name), "a section")
    return "\n".join([f"{name} is a section:", *table(keys, name), *_value_lines(name, config)])


def table(described: dict[str, str], section: str = "") -> Iterator[str]:
    """A line for each name, without the section that all of them are in."""
    names = {full: full.removeprefix(f"{section}.") for full in described}
    width = max(map(len, names.values()), default=0) + 2
    for full, description in described.items():
        words = textwrap.shorten(description, max(WIDTH - width, 20), placeholder=" …")
        yield f"  {names[full].ljust(width)}{words}"


def _inside(name: str, all_names: Any) -> list[str]:
    return [full for full in all_names if full.rpartition(".")[0] == name]


def _sections(name: str) -> list[str]:
    return _inside(name, REGISTRY.sections)


def _values_here(name: str, config: Config) -> dict[str, tuple[Any, str]]:
    """What is more than a plain default, and why it is that."""
    keys = _inside(name, REGISTRY.parameters)
    return {full: (config.get(full), because(full, config)) for full in keys if _differs(full, config)}


def _differs(name: str, config: Config) -> bool:
    value = config.get(name)
    return config.is_set(name) or (value is not ABSENT and value != REGISTRY.parameters[name].default)


def _value_lines(name: str, config: Config | None) -> list[str]:
    if config is None:
        return []
    values = _values_here(name, config)
    if not values:
        return ["", f"{name} here: nothing but defaults"]
    lines = [
        f"  {full.rpartition('.')[2]} {json.dumps(value, default=str)} ({why})" for full, (value, why) in values.items()
    ]
    return ["", f"{name} here:", *lines]
