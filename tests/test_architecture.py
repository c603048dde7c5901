"""Who may import whom: docs/architecture.md has the table, and it is exactly what the code does."""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pytest

from tests.support.paths import ROOT

PACKAGE = ROOT / "neoxargs"
PAGE = ROOT / "docs" / "architecture.md"
#: Modules side by side in a folder; a table by subject may be as wide as it has subjects.
WIDEST, TABLES = 14, {"registry", "resolve/rules", "launch/launchers"}


class Import(NamedTuple):
    """One import statement's target, a module of this package or the name of another one."""

    module: str
    target: str
    lazy: bool
    """Does it stand inside a function?"""


class Row(NamedTuple):
    """What the table says of a room: the rooms it imports, those it imports inside functions only, other packages."""

    imports: frozenset[str]
    lazily: frozenset[str]
    packages: frozenset[str]


@cache
def modules() -> dict[str, Path]:
    """Dotted name -> file of every module."""
    paths = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for name, path in paths.items()}


@cache
def imports() -> list[Import]:
    """Every import statement of the package, wherever it stands; what only type checkers read counts too."""
    return [found for name, path in modules().items() for found in _imports(name, ast.parse(path.read_text()), False)]


def _imports(module: str, tree: ast.AST, lazy: bool) -> Iterator[Import]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (Import(module, alias.name, lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module and not node.level, f"{module} has a relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield Import(module, full if full in modules() else node.module, lazy)
        yield from _imports(module, node, lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))


def table() -> dict[str, Row]:
    """Room -> what the page says of it."""
    text = PAGE.read_text(encoding="utf-8").split("## Who may import whom")[1].split("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    cells = [[frozenset(re.findall(r"`([^`]+)`", cell)) for cell in line.split("|")[1:-1]] for line in lines]
    return {next(iter(room)): Row(*rest) for room, *rest in cells}


@cache
def rooms() -> list[str]:
    """The folders of the package, innermost first, and the modules at its top."""
    folders = [str(path.parent.relative_to(PACKAGE)) for path in PACKAGE.rglob("__init__.py") if path.parent != PACKAGE]
    return sorted([*folders, *(path.stem for path in PACKAGE.glob("*.py"))], key=len, reverse=True)


def room_of(module: str) -> str:
    path = module.removeprefix("neoxargs.").replace(".", "/")
    return next(room for room in rooms() if f"{path}/".startswith(f"{room}/"))


def actual() -> dict[str, Row]:
    """Room -> what the code does."""
    now, later, packages = defaultdict(set), defaultdict(set), defaultdict(set)
    for module, target, lazy in imports():
        room, top = room_of(module), target.partition(".")[0]
        if top != "neoxargs":
            packages[room].update({top} - sys.stdlib_module_names)
        elif target != "neoxargs" and room_of(target) != room:
            (later if lazy else now)[room].add(room_of(target))
    used = sorted({room_of(module) for module in modules() if module != "neoxargs"})
    return {
        room: Row(frozenset(now[room]), frozenset(later[room] - now[room]), frozenset(packages[room])) for room in used
    }


def test_the_table_is_what_the_code_does() -> None:
    said, done = table(), actual()
    assert set(said) == set(done), f"rooms on one side only: {set(said) ^ set(done)}"
    for room, row in done.items():
        assert said[room] == row, f"{PAGE.name} on {room}: write\n{written(room, row)}"


def written(room: str, row: Row) -> str:
    """A row of the page."""
    return " | ".join(["", f"`{room}`", *(", ".join(f"`{name}`" for name in sorted(cell)) for cell in row), ""]).strip()


def circle(arrows: dict[str, set[str]]) -> list[str]:
    try:
        list(TopologicalSorter(arrows).static_order())
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_modules_import_each_other_in_a_circle() -> None:
    arrows = defaultdict(set)
    for module, target, _ in imports():
        if target in modules() and target != module:
            arrows[module].add(target)
    assert circle(arrows) == []


@pytest.mark.parametrize("room", ["tools", "train"])
def test_nobody_imports_the_tools_and_train(room: str) -> None:
    """Launcher and trainer meet only at `exec`; nothing but the command line reads the tools."""
    inside = [found for found in imports() if found.target.startswith(f"neoxargs.{room}")]
    outside = {found.module for found in inside if not found.module.startswith(f"neoxargs.{room}")}
    assert outside <= {"neoxargs.cli"} and not (room == "train" and outside)


def test_only_train_imports_torch_and_its_neighbours() -> None:
    light = {"yaml", "rich", "typing_extensions"}
    assert {
        package for room, row in actual().items() if not room.startswith("train") for package in row.packages
    } <= light


def test_folders_can_be_seen_at_a_glance() -> None:
    sides = {str(path.relative_to(PACKAGE)): len(list(path.glob("*.py"))) for path in [PACKAGE, *PACKAGE.rglob("*/")]}
    assert {folder: count for folder, count in sides.items() if count > WIDEST and folder not in TABLES} == {}


def test_files_and_functions_stay_short() -> None:
    """Median and 90th percentile outside of `train`, in lines."""
    paths = [path for name, path in modules().items() if not name.startswith("neoxargs.train")]
    files = [lines for path in paths if (lines := path.read_text().count("\n")) > 2]
    nodes = [node for path in paths for node in ast.walk(ast.parse(path.read_text()))]
    functions = [node.end_lineno - node.lineno + 1 for node in nodes if isinstance(node, ast.FunctionDef)]
    assert median(files) <= 110 and _ninetieth(files) <= 250 and max(files) <= 400
    assert median(functions) <= 6 and _ninetieth(functions) <= 14


def _ninetieth(lengths: list[int]) -> int:
    return sorted(lengths)[len(lengths) * 9 // 10]


def test_the_page_shows_the_tree() -> None:
    """Every folder, and every module at a folder's top, stands in the tree of the page."""
    tree = PAGE.read_text(encoding="utf-8").split("```text\n")[1].split("```")[0]
    missing = [room for room in rooms() if room != "__init__" and not re.search(rf"\b{Path(room).name}\b", tree)]
    assert missing == []


if __name__ == "__main__":  # prints the rows of the table as the code is now
    for name, cells in actual().items():
        print(written(name, cells))
