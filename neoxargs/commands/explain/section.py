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
    keys, sections = _inside(name, REGISTRY.parameters), _inside(name, REGISTRY.sections)
    return {"name": name, "keys": keys, "sections": sections, **values}


def to_text(name: str, config: Config | None) -> str:
    """Return the description as text."""
    keys = {full: REGISTRY.parameters[full].description for full in _inside(name, REGISTRY.parameters)}
    keys |= dict.fromkeys(_inside(name, REGISTRY.sections), "a section")
    lines = [f"{name} is a section:", *table(keys, name)]
    if config:
        values = _values(name, config)
        lines += ["", f"values of {name}:" if values else f"{name}: all values are defaults"]
        for full, (value, why) in values.items():
            lines.append(f"  {full.rpartition('.')[2]} {json.dumps(value, default=str)} ({why})")
    return "\n".join(lines)


def table(described: dict[str, str], section: str = "") -> Iterator[str]:
    """Yield one line per name with the beginning of its description; names are relative to the section."""
    names = {full: full.removeprefix(f"{section}.") for full in described}
    width = max(map(len, names.values()), default=0) + 2
    for full, description in described.items():
        words = textwrap.shorten(description, max(WIDTH - width, 20), placeholder=" …")
        yield f"  {names[full].ljust(width)}{words}"


def _inside(name: str, all_names: Any) -> list[str]:
    return [full for full in all_names if full.rpartition(".")[0] == name]


def _values(name: str, config: Config) -> dict[str, tuple[Any, str]]:
    """Return value and source of every key that is set or differs from its default."""
    values = {}
    for full in _inside(name, REGISTRY.parameters):
        value = config.get(full)
        if config.is_set(full) or value not in (ABSENT, REGISTRY.parameters[full].default):
            values[full] = value, source_of(full, config)
    return values
