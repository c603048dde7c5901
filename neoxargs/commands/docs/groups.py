"""Generate neoxargs/config/groups.py: a typed attribute of `Config` for each group of the registry."""

from __future__ import annotations

from collections import defaultdict

from neoxargs.registry import REGISTRY

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
    groups = [group for group in REGISTRY.groups if not group.in_data_file]
    modules = defaultdict(list)
    for group in groups:
        modules[group.__module__].append(group.__name__)
    # In ruff's order of imports.
    imports = "".join(_import(module, sorted(names)) for module, names in sorted(modules.items()))
    return HEAD + imports + CLASS + "".join(f"    {group.key()}: {group.__name__}\n" for group in groups)


def _import(module: str, names: list[str]) -> str:
    line = f"    from {module} import {', '.join(names)}"
    if len(line) <= WIDTH:
        return f"{line}\n"
    return f"    from {module} import (\n" + "".join(f"        {name},\n" for name in names) + "    )\n"
