"""List expressions in Megatron-LM flags, such as `([0]*1+[1]*26)`, evaluated without running any code."""

from __future__ import annotations

import ast

#: Longer lists are refused; no model has as many layers.
MAX_LENGTH = 10_000


def list_of(text: str) -> list[int] | None:
    """Evaluate an expression of integers, lists, `+`, `-` and `*`; None if it is not a list of integers."""
    try:
        value = _value(ast.parse(text.strip(" '\""), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # MemoryError: ast.parse of deeply nested brackets
        return None
    return value if isinstance(value, list) else None


def _value(node: ast.expr) -> int | list[int]:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.List(elts=items):
            return [_number(item) for item in items]
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _number(left) - _number(right)
        case ast.BinOp(left=left, op=op, right=right):
            return _computed(op, _value(left), _value(right))
    raise ValueError


def _number(node: ast.expr) -> int:
    value = _value(node)
    if isinstance(value, list):
        raise ValueError
    return value


def _computed(op: ast.operator, one: int | list[int], other: int | list[int]) -> int | list[int]:
    match op, one, other:
        case ast.Add(), int(), int():
            return one + other
        case ast.Add(), list(), list():
            return one + other
        case ast.Mult(), int(), int():
            return one * other
        case (ast.Mult(), list(items), int(times)) | (ast.Mult(), int(times), list(items)):
            if len(items) * times <= MAX_LENGTH:
                return items * times
    raise ValueError
