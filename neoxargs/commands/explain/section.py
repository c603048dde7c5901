"""Describe a section: its keys with the beginning of their descriptions and, with files, their values."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from typing import Any

from neoxargs.commands.explain.render import WIDTH
from neoxargs.config.config import Config
from neoxargs.registry import ABSENT, REGISTRY
from neoxargs.resolve.provenance import source_of


def to_json(name: str, config: Config | None) -> dict[str, Any]:
    """Return the description for `--json`."""
    values = {"values": {full: value for full, (value, _) in _values(name, config).items()}} if config else {}
    return {"name": name, "keys": _inside(name, REGISTRY.parameters), "sections": _sections(name), **values}


def to_text(name: str, config: Config | None) -> str:
    """Return the description as text."""
    keys = {full: REGISTRY.parameters[full].description for full in _inside(name, REGISTRY.parameters)}
    keys |= dict.fromkeys(_sections(name), "a section")
    return "\n".join([f"{name} is a section:", *table(keys, name), *_value_lines(name, config)])


def table(described: dict[str, str], section: str = "") -> Iterator[str]:
    """Yield one line per name with the beginning of its description; names are relative to the section."""
    names = {full: full.removeprefix(f"{section}.") for full in described}
    width = max(map(len, names.values()), default=0) + 2
    for full, description in described.items():
        words = textwrap.shorten(description, max(WIDTH - width, 20), placeholder=" …")
        yield f"  {names[full].ljust(width)}{words}"


def _inside(name: str, all_names: Any) -> list[str]:
    return [full for full in all_names if full.rpartition(".")[0] == name]


def _sections(name: str) -> list[str]:
    return _inside(name, REGISTRY.sections)


def _values(name: str, config: Config) -> dict[str, tuple[Any, str]]:
    """Return value and source of every key that is set or differs from its default."""
    keys = _inside(name, REGISTRY.parameters)
    return {full: (config.get(full), source_of(full, config)) for full in keys if _is_set_or_changed(full, config)}


def _is_set_or_changed(name: str, config: Config) -> bool:
    value = config.get(name)
    return config.is_set(name) or (value is not ABSENT and value != REGISTRY.parameters[name].default)


def _value_lines(name: str, config: Config | None) -> list[str]:
    if config is None:
        return []
    values = _values(name, config)
    if not values:
        return ["", f"{name}: all values are defaults"]
    lines = [
        f"  {full.rpartition('.')[2]} {json.dumps(value, default=str)} ({why})" for full, (value, why) in values.items()
    ]
    return ["", f"values of {name}:", *lines]
