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
WIDEST, TABLES = 14, {"registry", "resolve/rules"}


class Import(NamedTuple):
    """One import statement's target, a module of this package or the name of another one."""

    module: str
    target: str
    lazy: bool
    """Does it stand inside a function?"""


class Row(NamedTuple):
    """A row of the table: the parts that a part imports, those imported inside functions only, other packages."""

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
    """Part -> its row on the page."""
    text = PAGE.read_text(encoding="utf-8").split("## Who may import whom")[1].split("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    cells = [[frozenset(re.findall(r"`([^`]+)`", cell)) for cell in line.split("|")[1:-1]] for line in lines]
    rows = [(next(iter(part)), Row(*rest)) for part, *rest in cells]
    assert sorted({part for part, _ in rows}) == sorted(part for part, _ in rows), "a part has several rows"
    return dict(rows)


@cache
def parts() -> list[str]:
    """The folders of the package, innermost first, and the modules at its top."""
    folders = [str(path.parent.relative_to(PACKAGE)) for path in PACKAGE.rglob("__init__.py") if path.parent != PACKAGE]
    return sorted([*folders, *(path.stem for path in PACKAGE.glob("*.py"))], key=len, reverse=True)


def part_of(module: str) -> str:
    path = module.removeprefix("neoxargs.").replace(".", "/")
    return next(part for part in parts() if f"{path}/".startswith(f"{part}/"))


def actual() -> dict[str, Row]:
    """Part -> the row that the code implies."""
    now, later, packages = defaultdict(set), defaultdict(set), defaultdict(set)
    for module, target, lazy in imports():
        part, top = part_of(module), target.partition(".")[0]
        if top != "neoxargs":
            packages[part].update({top} - sys.stdlib_module_names)
        elif target != "neoxargs" and part_of(target) != part:
            (later if lazy else now)[part].add(part_of(target))
    used = sorted({part_of(module) for module in modules() if module != "neoxargs"})
    return {
        part: Row(frozenset(now[part]), frozenset(later[part] - now[part]), frozenset(packages[part])) for part in used
    }


def test_the_table_is_what_the_code_does() -> None:
    said, done = table(), actual()
    assert set(said) == set(done), f"parts on one side only: {set(said) ^ set(done)}"
    for part, row in done.items():
        assert said[part] == row, f"{PAGE.name} on {part}: write\n{written(part, row)}"


def written(part: str, row: Row) -> str:
    """A row of the page."""
    return " | ".join(["", f"`{part}`", *(", ".join(f"`{name}`" for name in sorted(cell)) for cell in row), ""]).strip()


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


@pytest.mark.parametrize("part", ["tools", "train"])
def test_nobody_imports_the_tools_and_train(part: str) -> None:
    """Launcher and trainer meet only at `exec`; nothing but the command line reads the tools."""
    inside = [found for found in imports() if found.target.startswith(f"neoxargs.{part}")]
    outside = {found.module for found in inside if not found.module.startswith(f"neoxargs.{part}")}
    assert outside <= {"neoxargs.cli"} and not (part == "train" and outside)


def test_only_train_imports_torch_and_its_neighbours() -> None:
    light = {"yaml", "rich", "typing_extensions"}
    heavier = {"token_files": {"numpy"}}  # imported only when a file is read
    for part, row in actual().items():
        if not part.startswith("train"):
            assert set(row.packages) <= light | heavier.get(part, set()), part


def test_private_names_of_deepspeed_are_used_in_one_folder_only() -> None:
    private = re.compile(r"\b(deepspeed|engine|module|optimizer|pipeline)\._[a-z]\w*")
    found = {
        f"{name}: {use[0]}"
        for name, path in modules().items()
        if name.startswith("neoxargs.train.") and not name.startswith("neoxargs.train.deepspeed")
        for use in private.finditer(path.read_text(encoding="utf-8"))
    }
    assert not found


def test_folders_can_be_seen_at_a_glance() -> None:
    sides = {str(path.relative_to(PACKAGE)): len(list(path.glob("*.py"))) for path in [PACKAGE, *PACKAGE.rglob("*/")]}
    assert {folder: count for folder, count in sides.items() if count > WIDEST and folder not in TABLES} == {}


def test_files_and_functions_stay_short() -> None:
    """Median and 90th percentile outside of `train`, in lines; a function's docstring is not counted."""
    paths = [path for name, path in modules().items() if not name.startswith("neoxargs.train")]
    files = [lines for path in paths if (lines := path.read_text().count("\n")) > 2]
    nodes = [node for path in paths for node in ast.walk(ast.parse(path.read_text()))]
    functions = [_lines(node) - _docstring_lines(node) for node in nodes if isinstance(node, ast.FunctionDef)]
    assert median(files) <= 110 and _ninetieth(files) <= 250 and max(files) <= 400
    assert median(functions) <= 5 and _ninetieth(functions) <= 13


def _lines(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _docstring_lines(function: ast.FunctionDef) -> int:
    return _lines(function.body[0]) if ast.get_docstring(function) else 0


def _ninetieth(lengths: list[int]) -> int:
    return sorted(lengths)[len(lengths) * 9 // 10]


def test_the_page_shows_the_tree() -> None:
    """Every folder, and every module at a folder's top, stands in the tree of the page."""
    tree = PAGE.read_text(encoding="utf-8").split("```text\n")[1].split("```")[0]
    missing = [part for part in parts() if part != "__init__" and not re.search(rf"\b{Path(part).name}\b", tree)]
    assert missing == []


if __name__ == "__main__":  # prints the rows of the table as the code is now
    for name, cells in actual().items():
        print(written(name, cells))
