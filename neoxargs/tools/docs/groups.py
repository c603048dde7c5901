"""neoxargs/resolve/groups.py: one typed attribute of a configuration for each group of the registry."""

from __future__ import annotations

from collections import defaultdict

from neoxargs.registry import REGISTRY

HEAD = '''"""The groups that every `Config` holds, for editors and type checkers: `config.shape.num_layers` is an int.

Generated from neoxargs/registry by `python deepy.py docs`. A group of a plugin is not in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
'''

CLASS = '''

class Groups:
    """One attribute for each group of parameters."""

'''
#: As the formatter breaks lines, which must find nothing to do.
WIDTH = 120


def source() -> str:
    """The module's source."""
    modules = defaultdict(list)
    for group in REGISTRY.groups:
        modules[group.__module__].append(group.__name__)
    imports = "".join(_import(module, sorted(names)) for module, names in sorted(modules.items()))
    return HEAD + imports + CLASS + "".join(f"    {group.key()}: {group.__name__}\n" for group in REGISTRY.groups)


def _import(module: str, names: list[str]) -> str:
    line = f"    from {module} import {', '.join(names)}"
    if len(line) <= WIDTH:
        return f"{line}\n"
    return f"    from {module} import (\n" + "".join(f"        {name},\n" for name in names) + "    )\n"
