"""Descriptions of parameters: the strings below their declarations, read from the source file."""

from __future__ import annotations

import ast
import re
from functools import cache
from itertools import pairwise


@cache
def read(path: str, class_name: str) -> dict[str, str]:
    """Return attribute -> description of the class of that name in a file."""
    by_attribute = {}
    for line, below in pairwise(_class_bodies(path)[class_name]):
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            by_attribute[line.target.id] = _string(below)
    return by_attribute


@cache
def _class_bodies(path: str) -> dict[str, list[ast.stmt]]:
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    end: ast.stmt = ast.Pass()
    return {node.name: [*node.body, end] for node in tree.body if isinstance(node, ast.ClassDef)}


def _string(node: ast.stmt) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return re.sub(r"\s+", " ", node.value.value).strip()
    return ""
