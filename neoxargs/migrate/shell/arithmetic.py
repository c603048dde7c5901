"""Shell arithmetic, `$(( ))` and `(( ))`, evaluated without running any code."""

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
#: `N = 2`, `N += 2`, `N++` or `++N`.
_ASSIGNED = re.compile(r"\s*(?:(\w+)\s*([-+*/%]?)=(?!=)(.+)|(\w+)(\+\+|--)|(\+\+|--)(\w+))\s*", re.A | re.S)
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
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _quotient,
    ast.FloorDiv: _quotient,
    ast.Pow: _power,
    ast.Mod: lambda left, right: left - right * _quotient(left, right),
}


def evaluate(sum_: str, value_of: Callable[[str], str]) -> int | None:
    """Evaluate integers, variables, comparisons and `&&`/`||`, as 0 or 1 for a condition; None if a value is unknown.

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


def assigned(statement: str, value_of: Callable[[str], str]) -> dict[str, str | None]:
    """Return the variables that `(( ))` or `let` sets, and their values; None for one that is unknown."""
    values: dict[str, str | None] = {}
    for match in filter(None, map(_ASSIGNED.fullmatch, statement.split(","))):
        name, sign = match[1] or match[4] or match[7], match[2] or (match[5] or match[6] or "")[:1]
        sum_ = f"{name} {sign} ({match[3] or 1})" if sign else match[3]
        total = evaluate(sum_, lambda other: values.get(other) or value_of(other))
        values[name] = None if total is None else str(total)
    return values


def _evaluate(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluate(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_evaluate(node.left), _evaluate(node.right))
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _OPERATORS:
        return int(_OPERATORS[type(node.ops[0])](_evaluate(node.left), _evaluate(node.comparators[0])))
    if isinstance(node, ast.BoolOp):
        joined = all if isinstance(node.op, ast.And) else any
        return int(joined([_evaluate(value) for value in node.values]))
    raise ValueError
