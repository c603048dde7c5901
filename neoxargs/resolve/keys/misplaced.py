"""Valid keys at an invalid place: dotted in a file, not indented below their section, or in an unknown section."""

from __future__ import annotations

import re
from collections.abc import Sequence

from neoxargs.base.problems import Place, Problem, listed
from neoxargs.registry import REGISTRY
from neoxargs.resolve.yaml.nodes import Entry, Mapping


def dotted_key(name: str, entry: Entry) -> Problem:
    """The problem of a dotted key such as `fp16.enabled` in a file."""
    what = "dotted keys are allowed only in --set"
    return Problem(what, entry.place, f"in a YAML file, write `{nested(entry.key)}`", id="dotted-key", about=(name,))


def nested(name: str) -> str:
    """Return a dotted name as it is written in a file: `fp16: {enabled: …}`."""
    *sections, last = name.split(".")
    return "".join(f"{section}: {{" for section in sections) + f"{last}: …" + "}" * len(sections)


def outdented_key(name: str, section: str, entry: Entry) -> Problem:
    """The problem of a key that is not indented below its section, which is empty and on the line above."""
    hint = f"indent `{entry.key}` and the other keys of {section} by two spaces"
    what = f"`{entry.key}` must be indented to be part of the {section} section"
    return Problem(what, entry.place, hint, id="misplaced-key", about=(name,))


def parameters_in_unknown_section(name: str, entry: Entry) -> list[str]:
    """Return the top-level parameters in a section such as `model:`, if they are at least half of its keys."""
    if "." in name or not isinstance(entry.value, Mapping):
        return []
    keys = [inner.key for inner in entry.value.entries]
    inside = [parameter.name for key in keys if (parameter := REGISTRY.find(key)) and "." not in parameter.name]
    # With `enabled`, it is a feature that deepy does not have, and not a heading.
    return inside if 2 * len(inside) >= len(keys) and "enabled" not in keys else []


def holder_advice(key: str, place: Place) -> str:
    """Return the hint for a top-level key whose value has an anchor, else ""."""
    has_anchor = re.search(r":\s*&\w", place.text)
    return f"if it only holds values for aliases, rename it to `x-{key}:`, which is not read" if has_anchor else ""


def unknown_section(entry: Entry, inside: Sequence[str]) -> Problem:
    """The problem of a section that does not exist and contains top-level parameters."""
    hint = f"remove `{entry.key}:` and write {listed(inside, 'and', most=3)} at the top level"
    if advice := holder_advice(entry.key, entry.place):
        hint += f"; {advice}"
    what = f"{entry.key} is not a section; its keys belong at the top level"
    return Problem(what, entry.place, hint, id="misplaced-key", about=tuple(inside))
