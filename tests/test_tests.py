"""How tests are written: what several share is in tests/support, and one module there knows where files lie."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.support.paths import ROOT

MODULES = sorted((ROOT / "tests").rglob("*.py"))


def nodes(path: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(path.read_text(encoding="utf-8")))


def imported(path: Path) -> Iterator[str]:
    """Every module of the tests that is imported, and every name that may be one."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} imports by a relative name"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_no_test_module_is_imported() -> None:
    crossing = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in MODULES
        for name in imported(path)
        if name.startswith("tests.") and ".test_" in name
    }
    assert crossing == set(), "move what both need to tests/support"


def test_where_files_lie_is_asked_of_one_module() -> None:
    climbing = {
        str(path.relative_to(ROOT))
        for path in MODULES
        for node in nodes(path)
        if isinstance(node, ast.Attribute) and node.attr == "parents"
    }
    assert climbing == {"tests/support/paths.py"}
