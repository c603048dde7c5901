"""Shell arithmetic, `$(( ))`, evaluated without running any code."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable

_BRACKETS = r"\((?:[^()]|\([^()]*\))*\)"
SUM = re.compile(rf"\$\(\(((?:[^()]|{_BRACKETS})*)\)\)")
TEST = re.compile(SUM.pattern[2:])
#: A command substitution; its output is never known.
COMMAND = re.compile(rf"\$\((?:[^()]|{_BRACKETS})*\)|`[^`]*`")
#: A variable that `(( ))` sets: `N = 2`, `N += 2`, `N++` or `++N`.
ASSIGNED = re.compile(r"([A-Za-z_]\w*)\s*(?:[-+*/%]?=(?!=)|\+\+|--)|(?:\+\+|--)([A-Za-z_]\w*)", re.A)
_MAX_POWER = 63


def _quotient(left: int, right: int) -> int:
    """Divide as the shell does, which truncates toward zero."""
    size = abs(left) // abs(right)
    return size if (left < 0) == (right < 0) else -size


def _power(left: int, right: int) -> int:
    if not 0 <= right <= _MAX_POWER or abs(left) > 2**_MAX_POWER:
        raise ValueError
    return int(left**right)


_OPERATORS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _quotient,
    ast.FloorDiv: _quotient,
    ast.Pow: _power,
    ast.Mod: lambda left, right: left - right * _quotient(left, right),
}


def evaluate(sum_: str, value_of: Callable[[str], str]) -> int | None:
    """Evaluate integers, variables and `&&`/`||`; None if a value is unknown, or for a comparison.

    value_of: returns the value of a variable, empty if unknown.
    """
    if "++" in sum_ or "--" in sum_:  # Python would read `--N` as N
        return None
    # In arithmetic, a variable needs no `$`.
    # An unknown one becomes `?`, which is no expression; nothing in its place would make `2*N*3` a power.
    plain = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda match: value_of(match[1]) or "?", sum_)
    plain = plain.replace("&&", " and ").replace("||", " or ")
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
    if isinstance(node, ast.BoolOp):
        joined = all if isinstance(node.op, ast.And) else any
        return int(joined([_evaluate(value) for value in node.values]))
    raise ValueError
