"""No module imports itself in a circle, and torch stays in its rooms; `lint-imports` checks who may import whom."""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

from neoxargs.base import programs
from tests.support.paths import ROOT

PACKAGE = ROOT / "neoxargs"


class Import(NamedTuple):
    """One import statement's target, a module of this package or the name of another one."""

    module: str
    target: str


@cache
def modules() -> dict[str, Path]:
    """Dotted name -> file of every module."""
    paths = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for name, path in paths.items()}


@cache
def imports() -> list[Import]:
    """Every import statement of the package, wherever it stands; what only type checkers read counts too."""
    return [found for name, path in modules().items() for found in _imports(name, ast.parse(path.read_text()))]


def _imports(module: str, tree: ast.AST) -> Iterator[Import]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (Import(module, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module and not node.level, f"{module} has a relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield Import(module, full if full in modules() else node.module)
        yield from _imports(module, node)


@cache
def parts() -> list[str]:
    """The folders of the package, innermost first, and the modules at its top."""
    folders = [str(path.parent.relative_to(PACKAGE)) for path in PACKAGE.rglob("__init__.py") if path.parent != PACKAGE]
    return sorted([*folders, *(path.stem for path in PACKAGE.glob("*.py"))], key=len, reverse=True)


def part_of(module: str) -> str:
    path = module.removeprefix("neoxargs.").replace(".", "/")
    return next(part for part in parts() if f"{path}/".startswith(f"{part}/"))


def circle(arrows: dict[str, set[str]]) -> list[str]:
    try:
        list(TopologicalSorter(arrows).static_order())
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_modules_import_each_other_in_a_circle() -> None:
    arrows = defaultdict(set)
    for module, target in imports():
        if target in modules() and target != module:
            arrows[module].add(target)
    assert circle(arrows) == []


def test_few_rooms_import_heavy_packages() -> None:
    """What starts with every command imports the standard library, YAML and rich; `lint-imports` orders the rooms."""
    light = {"yaml", "rich", "typing_extensions"}
    heavier = {
        "data": {"numpy", "tokenizers", "jinja2", "sentencepiece", "zstandard"},
        "files/token_files": {"numpy"},
        "commands/verify": {"numpy"},
        "commands/lsp": {"lsprotocol", "pygls"},
    }
    for module, target in imports():
        part, package = part_of(module), target.partition(".")[0]
        if package in {"neoxargs", *sys.stdlib_module_names} or part.startswith(("train", "convert")):
            continue
        allowed = light.union(*(names for room, names in heavier.items() if f"{part}/".startswith(f"{room}/")))
        assert package in allowed, f"{module} imports {package}"


def test_modules_named_in_strings_stand_in_one_table() -> None:
    """A name in a string is an import that no checker sees; `python -m` needs such names, and nothing else."""
    names = modules().keys() - {"neoxargs"}
    for name in (value for key, value in vars(programs).items() if key.isupper() and isinstance(value, str)):
        assert "__main__" in modules()[name].read_text(encoding="utf-8"), f"python -m {name} does nothing"
    elsewhere = {
        f"{module}: {node.value}"
        for module, path in modules().items()
        if module != programs.__name__
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in names
    }
    assert elsewhere == set()


def test_private_names_of_deepspeed_are_used_in_one_folder_only() -> None:
    private = re.compile(r"\b(deepspeed|engine|module|optimizer|pipeline)\._[a-z]\w*")
    found = {
        f"{name}: {use[0]}"
        for name, path in modules().items()
        if name.startswith("neoxargs.train.") and not name.startswith("neoxargs.train.deepspeed")
        for use in private.finditer(path.read_text(encoding="utf-8"))
    }
    assert not found
