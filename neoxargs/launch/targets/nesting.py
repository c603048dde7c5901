"""Dotted names as nested sections."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def nested(flat: dict[str, Any], sections: Iterable[str] = ()) -> dict[str, Any]:
    """`{"fp16.enabled": True}` as `{"fp16": {"enabled": True}}`; the sections are there even if nothing is in them."""
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *path, last = name.split(".")
        _inside(tree, path)[last] = value
    for section in sections:
        _inside(tree, section.split("."))
    return tree


def _inside(tree: dict[str, Any], path: list[str]) -> dict[str, Any]:
    for part in path:
        tree = tree.setdefault(part, {})
    return tree
