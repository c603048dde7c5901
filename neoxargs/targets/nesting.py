"""Conversion of dotted names to nested sections."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def nested(flat: dict[str, Any], sections: Iterable[str] = ()) -> dict[str, Any]:
    """Convert `{"fp16.enabled": True}` to `{"fp16": {"enabled": True}}`. sections: created even if they are empty."""
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *path, last = name.split(".")
        _section(tree, path)[last] = value
    for section in sections:
        _section(tree, section.split("."))
    return tree


def _section(tree: dict[str, Any], path: list[str]) -> dict[str, Any]:
    """Return the section at a path, which is created if necessary."""
    for part in path:
        tree = tree.setdefault(part, {})
    return tree
