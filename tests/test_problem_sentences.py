"""Code identifies problems by their id; only the renderer reads their text."""

from __future__ import annotations

import ast

import pytest

from tests.support.paths import ROOT

PACKAGE = ROOT / "neoxargs"
MODULES = [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "base/problems.py"]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_module_reads_the_sentence_of_a_problem(path) -> None:
    read = [
        f"{path}:{node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in ("what", "hint") and isinstance(node.ctx, ast.Load)
    ]
    assert read == []
