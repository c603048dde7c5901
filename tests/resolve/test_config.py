"""What a configuration offers: typed groups, and for every value its source."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

from neoxargs.problems import Place
from neoxargs.registry import REGISTRY
from neoxargs.resolve import groups
from neoxargs.resolve.config import Config
from neoxargs.resolve.value import Source, Value

HEAD = '''"""The groups that every `Config` holds, for editors and type checkers: `config.shape.num_layers` is an int.

Written by `UPDATE=1 pytest tests/resolve/test_config.py` from the registry. A group of a plugin is not in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
'''

CLASS = '''

class Groups:
    """One attribute for each group of parameters."""

'''


def text_of_groups() -> str:
    modules = defaultdict(list)
    for group in REGISTRY.groups:
        modules[group.__module__].append(group.__name__)
    imports = "".join(import_line(module, sorted(names)) for module, names in sorted(modules.items()))
    return HEAD + imports + CLASS + "".join(f"    {group.key()}: {group.__name__}\n" for group in REGISTRY.groups)


def import_line(module: str, names: list[str]) -> str:
    line = f"    from {module} import {', '.join(names)}\n"
    if len(line) <= 121:
        return line
    return f"    from {module} import (\n" + "".join(f"        {name},\n" for name in names) + "    )\n"


def test_every_group_is_a_typed_attribute() -> None:
    path = Path(groups.__file__)
    if os.environ.get("UPDATE"):
        path.write_text(text_of_groups(), encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text_of_groups(), "run UPDATE=1 pytest tests/resolve/test_config.py"


def test_no_two_groups_share_an_attribute() -> None:
    keys = [group.key() for group in REGISTRY.groups]
    assert len(keys) == len(set(keys))
    assert not set(keys) & {name for name in dir(Config) if not name.startswith("__")}


PLACE = Place("my.yml", 3, 1, "num-layers: 12", 14)


def test_values_are_read_through_groups_and_by_name() -> None:
    config = Config({"num_layers": Value(12, Source("file", PLACE))})
    assert config.shape.num_layers == 12
    assert config.get("num-layers") == 12
    assert config.written("num_layers")
    assert str(config.source("num-layers")) == "my.yml:3:1"


def test_what_nobody_wrote_is_the_default() -> None:
    config = Config({})
    assert config.training.seed == config.get("seed") == REGISTRY.parameters["seed"].default
    assert not config.written("seed")
    assert str(config.source("seed")) == "default"


def test_items_walk_the_whole_registry() -> None:
    items = dict(Config({"num_layers": Value(12, Source("file", PLACE))}).items())
    assert list(items) == list(REGISTRY.parameters.values())
    assert items[REGISTRY.parameters["num_layers"]].value == 12


def test_sources_word_themselves() -> None:
    assert str(Source("default", text="neox-2026")) == "default: neox-2026"
    assert str(Source("derived", text="4 x hidden_size")) == "derived: 4 x hidden_size"
    assert str(Source("set", Place("--set", 1, 1, "seed=1"))) == "--set seed=1"
    assert str(Source("environment", text="MASTER_ADDR")) == "environment: MASTER_ADDR"
