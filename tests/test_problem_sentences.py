"""Code identifies problems by their id; only the renderer reads their text."""

from __future__ import annotations

import ast

from tests.support.paths import ROOT

PACKAGE = ROOT / "neoxargs"
MODULES = [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "base/problems.py"]


def test_no_module_reads_the_sentence_of_a_problem() -> None:
    read = [
        f"{path}:{node.lineno}: {ast.unparse(node)}"
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in ("what", "hint") and isinstance(node.ctx, ast.Load)
    ]
    assert len(MODULES) > 100 and read == []
