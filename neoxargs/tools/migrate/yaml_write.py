"""Settings as a new YAML file: in the registry's order, with the comments that came with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from neoxargs.problems import printable
from neoxargs.registry import REGISTRY
from neoxargs.tools.migrate.yaml_edit import yaml_value


@dataclass(frozen=True)
class Setting:
    """One line of the file to be.

    text: the value as it is to be written, where its own spelling is kept (`5e8`).
    """

    value: Any
    text: str = ""
    above: Sequence[str] = ()
    behind: str = ""


def yaml_text(settings: Mapping[str, Setting], head: Iterable[str] = (), empty: Iterable[str] = ()) -> str:
    """The file; `empty` are sections that were written without any key."""
    tree: dict[str, Any] = {}
    for name in sorted([*settings, *empty], key=_place):
        branch = tree
        *sections, last = name.split(".")
        for section in sections:
            branch = branch.setdefault(section, {})
        branch.setdefault(last, settings.get(name, {}))
    return "\n".join([*(f"# {printable(line)}" for line in head), *_lines(tree, ""), ""])


def _place(name: str) -> int:
    """A parameter's number in the registry, a section's that of its first."""
    known = list(REGISTRY.parameters)
    return next((i for i, other in enumerate(known) if other == name or other.startswith(name + ".")), len(known))


def _lines(tree: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in tree.items():
        if isinstance(value, Setting):
            yield from (f"{indent}# {printable(line)}" for line in value.above)
            text = value.text or yaml_value(value.value)
            yield f"{indent}{key}: {text}{f'  # {printable(value.behind)}' if value.behind else ''}"
        elif value:
            yield f"{indent}{key}:"
            yield from _lines(value, indent + "  ")
        else:
            yield f"{indent}{key}: {{}}"
