"""Write settings as a new YAML file, in the order of the registry and with their comments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from neoxargs.base.problems import printable
from neoxargs.registry import REGISTRY
from neoxargs.resolve.yaml.edit import yaml_value


@dataclass(frozen=True)
class Setting:
    """The value of one key, with its comments.

    text: the value as written in the source, to keep spellings such as `5e8`; empty to format `value`.
    above: comment lines before the key. behind: the comment after the value.
    """

    value: Any
    text: str = ""
    above: Sequence[str] = ()
    behind: str = ""


def yaml_text(settings: Mapping[str, Setting], head: Iterable[str] = (), empty: Iterable[str] = ()) -> str:
    """Return the text of the file. head: comment lines at the top. empty: sections to write without any key."""
    tree: dict[str, Any] = {}
    known = list(REGISTRY.parameters)

    def place(name: str) -> int:
        """Return the index of a parameter in the registry; for a section, of its first parameter."""
        return next((i for i, other in enumerate(known) if other == name or other.startswith(name + ".")), len(known))

    for name in sorted([*settings, *empty], key=place):
        branch = tree
        *sections, last = name.split(".")
        for section in sections:
            branch = branch.setdefault(section, {})
        branch.setdefault(last, settings.get(name, {}))  # {}: an empty section
    return "\n".join([*(f"# {printable(line)}" for line in head), *_lines(tree, ""), ""])


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
