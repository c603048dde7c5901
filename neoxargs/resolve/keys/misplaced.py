"""Keys that exist, at a place where they cannot stand: dotted in a file, beside their section, in one made up."""

from __future__ import annotations

from collections.abc import Sequence

from neoxargs.problems import Problem, listed
from neoxargs.registry import REGISTRY
from neoxargs.resolve.yaml.nodes import Entry, Mapping


def dotted_key(name: str, entry: Entry) -> Problem:
    """`fp16.enabled` in a file, where dots do not nest."""
    *sections, last = entry.key.split(".")
    nested = "".join(f"{section}: {{" for section in sections) + f"{last}: …" + "}" * len(sections)
    what = "dotted keys are allowed only in --set"
    return Problem(what, entry.place, f"write `{nested}` in a file", id="dotted-key", about=(name,))


def outdented_key(name: str, section: str, entry: Entry) -> Problem:
    """A key of the section whose name stands above it with nothing in it."""
    hint = f"indent it and the other keys of {section} by two spaces"
    what = f"{entry.key} must be indented to be part of section {section}"
    return Problem(what, entry.place, hint, id="misplaced-key", about=(name,))


def in_made_up_section(name: str, entry: Entry) -> list[str]:
    """The parameters of the top level in a section such as `model:`, if they are half its keys at least."""
    if "." in name or not isinstance(entry.value, Mapping):
        return []
    keys = [inner.key for inner in entry.value.entries]
    inside = [parameter.name for key in keys if (parameter := REGISTRY.find(key)) and "." not in parameter.name]
    return inside if 2 * len(inside) >= len(keys) and "enabled" not in keys else []


def made_up_section(entry: Entry, inside: Sequence[str]) -> Problem:
    """A section that is none, around parameters of the top level."""
    hint = f"remove `{entry.key}:` and write {listed(inside, 'and', most=3)} at the top level"
    what = f"{entry.key} is not a section; its keys belong at the top level"
    return Problem(what, entry.place, hint, id="misplaced-key", about=tuple(inside))
