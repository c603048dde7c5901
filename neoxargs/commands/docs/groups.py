"""Generate neoxargs/config/groups.py: a typed attribute of `Config` for each group of the registry."""

from __future__ import annotations

import re
import typing
from collections import defaultdict

from neoxargs.registry import REGISTRY, Group, types

HEAD = '''"""The groups of a `Config`, for editors and type checkers: `config.shape.num_layers` is an int.

Generated from neoxargs/registry by `python deepy.py docs`, without the groups of plugins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
'''

CLASS = '''

class Groups:
    """The parameter groups of a configuration, one attribute each."""

'''
#: The line length of `ruff format`, so that it does not change the generated file.
WIDTH = 120


def source() -> str:
    """Return the source of the module."""
    groups = [group for group in REGISTRY.groups if group.has_attribute]
    classes = "".join(_class(group) for group in groups if group.in_data_file)
    modules = defaultdict(set)
    for group in groups:
        if not group.in_data_file:
            modules[group.__module__].add(group.__name__)
    for name in re.findall(r"\b[A-Z]\w+(?!\w*\")", classes):
        if name in vars(types):
            modules[types.__name__ if name in _OWN else "typing"].add(name)
    # In ruff's order of imports.
    lines = {module: _import(module, sorted(names)) for module, names in sorted(modules.items())}
    standard = lines.pop("typing") + "\n"
    attributes = "".join(f"    {group.key()}: {group.__name__}\n" for group in groups)
    return HEAD + standard + "".join(lines.values()) + classes + CLASS + attributes


#: The types that are declared in `registry/types.py`, and not imported there.
_OWN = {name for name in vars(types) if name not in vars(typing)}


def _class(group: type[Group]) -> str:
    """Return the attributes of a group of a data file."""
    rows = (f"        {parameter.attribute}: {parameter.annotation}\n" for parameter in group.parameters.values())
    return f"\n    class {group.__name__}:\n" + "".join(rows).replace("'", '"')


def _import(module: str, names: list[str]) -> str:
    line = f"    from {module} import {', '.join(names)}"
    if len(line) <= WIDTH:
        return f"{line}\n"
    return f"    from {module} import (\n" + "".join(f"        {name},\n" for name in names) + "    )\n"
