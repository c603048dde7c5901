"""Shell arithmetic, `$(( ))`, evaluated without running any code: `+`, `-`, `*` and `/` of whole numbers."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable

_BRACKETS = r"\((?:[^()]|\([^()]*\))*\)"
SUM = re.compile(rf"\$\(\(((?:[^()]|{_BRACKETS})*)\)\)")
#: A command substitution; its output is never known.
COMMAND = re.compile(rf"\$\((?:[^()]|{_BRACKETS})*\)|`[^`]*`")


def _quotient(left: int, right: int) -> int:
    """Divide as the shell does, which truncates toward zero."""
    size = abs(left) // abs(right)
    return size if (left < 0) == (right < 0) else -size


_OPERATORS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: _quotient,
}  # fmt: skip


def evaluate(sum_: str, value_of: Callable[[str], str]) -> int | None:
    """Evaluate an expression; None if a value in it is unknown, or if it has other operators.

    value_of: returns the value of a variable, empty if unknown.
    """
    if "++" in sum_ or "--" in sum_:  # Python would read `--N` as N
        return None
    # In arithmetic, a variable needs no `$`.
    # An unknown one becomes `?`, which is no expression; nothing in its place would make `2*N*3` a power.
    plain = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda match: value_of(match[1]) or "?", sum_)
    try:
        return _evaluate(ast.parse(plain.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return None


def _evaluate(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluate(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_evaluate(node.left), _evaluate(node.right))
    raise ValueError
