"""What a program asserts of its settings: which of the steps in other_keys.json do not hold for some values.

A condition is decided only if the settings that it names are known. What a step of the program changes is known only if
its new value is.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from neoxargs.base.problems import listed
from neoxargs.base.record import Record, replace
from neoxargs.registry.other_keys import Step

#: What is not known.
UNKNOWN: Any = object()
OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv, ast.Mod: operator.mod, ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt,
    ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip
FUNCTIONS: dict[str, Callable[[Any], Any]] = {"len": len, "any": any, "all": all, "int": int, "bool": bool}
#: Comparison -> what a sentence says of the first value.
COMPARISONS: dict[type[ast.AST], str] = {
    ast.Eq: "must be", ast.NotEq: "must not be", ast.Gt: "must be above", ast.GtE: "must be at least",
    ast.Lt: "must be below", ast.LtE: "must be at most", ast.In: "must be one of", ast.NotIn: "must be none of",
}  # fmt: skip

SIGNS: dict[type[ast.AST], str] = {ast.Mult: "x", ast.FloorDiv: "/"}


class Broken(Record):
    """A condition that does not hold, and those by which it applies."""

    test: ast.expr
    when: tuple[ast.expr, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The settings that it is about, and those by which it applies."""
        return tuple(dict.fromkeys(name for node in (self.test, *self.when) for name in _names(node)))

    def beside(self, usual: Collection[str], given: Collection[str]) -> Broken:
        """Leave out that a usual setting is given, if the condition is about another given one as well."""
        others = tuple(part for part in self.when if not (isinstance(part, ast.Name) and part.id in usual))
        is_about_more = any(name in given for part in others for name in _names(part))
        return replace(self, when=others) if is_about_more else self


class Words(Record):
    """How a sentence calls the settings of a program."""

    given: Mapping[str, str]
    """The flag of each setting that is given, with its value."""
    flags: Callable[[str], tuple[str, str]]
    """Returns the flag of a setting, and the one that switches it off, "" if there is none."""

    def name(self, setting: str) -> str:
        return self.given.get(setting) or self.flags(setting)[0] or self.flags(setting)[1] or setting


def broken(steps: Iterable[Step], known: Mapping[str, Any]) -> Iterator[Broken]:
    """Yield the conditions that do not hold. known: name -> value of each setting."""
    # same: what a setting was made of, in terms of flags. causes: the flag by which another one has its value.
    now, same, causes = dict(known), dict[str, ast.expr](), dict[str, ast.expr]()
    for step in steps:
        applies = value_of(_parsed(step.when), now) if step.when else True
        if applies is not UNKNOWN and not applies:
            continue
        if step.check:
            held = value_of(_parsed(step.check), now)
            if UNKNOWN not in (applies, held) and not held:
                when = _parsed(step.when or "True")
                parts = when.values if isinstance(when, ast.BoolOp) and isinstance(when.op, ast.And) else [when]
                yield Broken(
                    _renamed(_parsed(step.check), same), tuple(_renamed(part, same | causes) for part in parts)
                )
            continue
        value = value_of(_parsed(step.to), now) if step.to and applies is not UNKNOWN else UNKNOWN
        made = _renamed(_parsed(step.to), same) if value is not UNKNOWN else None
        same.pop(step.set, None)
        causes.pop(step.set, None)
        if isinstance(made, ast.Name) or (made and step.set.startswith("_")):  # a variable has no flag
            same[step.set] = made
        elif isinstance(made, ast.Constant) and step.when.isidentifier():
            causes[step.set] = ast.Name(step.when)
        if value is UNKNOWN:
            now.pop(step.set, None)
        else:
            now[step.set] = value


def value_of(node: ast.expr, known: Mapping[str, Any]) -> Any:
    """Return the value of an expression, or UNKNOWN."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return known.get(node.id, UNKNOWN)
    if isinstance(node, ast.BoolOp):
        return _joined([value_of(value, known) for value in node.values], isinstance(node.op, ast.Or))
    is_call = isinstance(node, ast.Call)
    children = node.args if isinstance(node, ast.Call) else ast.iter_child_nodes(node)
    parts = [value_of(part, known) for part in children if isinstance(part, ast.expr)]
    if any(part is UNKNOWN for part in parts) or (is_call and len(parts) != 1):
        return UNKNOWN
    try:
        return _computed(node, parts)
    except (TypeError, ValueError, ZeroDivisionError):
        return UNKNOWN


def _joined(values: list[Any], decides: bool) -> Any:
    """Return what `or` (decides: true) or `and` makes of values, some of which may be unknown."""
    for value in values:
        if value is not UNKNOWN and bool(value) == decides:
            return value
    return UNKNOWN if any(value is UNKNOWN for value in values) else values[-1]


def _computed(node: ast.expr, parts: list[Any]) -> Any:
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](*parts)
    if isinstance(node, ast.UnaryOp):
        return not parts[0] if isinstance(node.op, ast.Not) else -parts[0]
    if isinstance(node, ast.Compare):
        return all(OPERATORS[type(op)](a, b) for op, a, b in zip(node.ops, parts, parts[1:], strict=False))
    if isinstance(node, ast.IfExp):
        test, one, other = parts
        return one if test else other
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS:
        return FUNCTIONS[node.func.id](parts[0])
    return parts if isinstance(node, ast.Tuple | ast.List | ast.Set) else UNKNOWN


@cache
def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _names(node: ast.AST) -> tuple[str, ...]:
    found = (each.id for each in ast.walk(node) if isinstance(each, ast.Name) and each.id not in FUNCTIONS)
    return tuple(dict.fromkeys(found))


def _renamed(node: ast.expr, names: Mapping[str, ast.expr]) -> ast.expr:
    """Return an expression with others in place of names."""

    class Renamed(ast.NodeTransformer):
        def visit_Name(self, each: ast.Name) -> ast.expr:
            return names.get(each.id, each)

    found: ast.expr = Renamed().visit(ast.parse(ast.unparse(node), mode="eval").body)
    return found


# -- sentences --------------------------------------------------------------------------------------------------------


def sentence(found: Broken, words: Words) -> tuple[str, str]:
    """Return what is wrong, and what to do."""
    about = _names(found.test)
    names = dict.fromkeys(name for part in found.when for name in _names(part) if name not in about)
    given = [words.given[name] for name in names if name in words.given]
    because = listed(given, "and")
    does, flag = _said(found.test, words) or ("", "")
    if _excludes(found.test):
        given += [words.given[name] for name in about if name in words.given]
        return f"{listed(given, 'and')} exclude each other", "remove one of them"
    if does == "is required" and because:
        return f"{because} needs {flag}", f"add {flag}"
    if does == "is not allowed" and because:
        return f"{listed([*given, flag], 'and')} exclude each other", "remove one of them"
    what = f"{flag} {does}" if does else f"Megatron-LM requires {_shown(found.test, words)}"
    others = [each for part in found.when if (each := _ends(part, words))]
    hint = f"change it, or add {listed(others)}" if 0 < len(others) < 3 else ""
    return f"{what}{f' with {because}' if because else ''}", hint


def _excludes(test: ast.expr) -> bool:
    """Whether not all of several settings may be set, `not (a and b)`, or at most one, `a + b <= 1`."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=ast.BoolOp(op=ast.And())):
            return True
        case ast.Compare(left=ast.BinOp(op=ast.Add()), ops=[ast.LtE(), *_]):
            return True
    return False


def _ends(part: ast.expr, words: Words) -> str:
    """Return a flag with which a condition applies no more."""
    match part:
        case ast.Name(id=name) if name not in words.given:
            return words.flags(name)[1]
        case ast.UnaryOp(operand=ast.Name(id=name)) | ast.Compare(left=ast.Name(id=name), ops=[ast.Is(), *_]):
            return words.flags(name)[0] if name not in words.given else ""
    return ""


def _said(test: ast.expr, words: Words) -> tuple[str, str] | None:
    """Return what must be the case of which setting, if it is simple."""
    match test:
        case ast.Name(id=name):
            return "is required", words.name(name)
        case ast.UnaryOp(op=ast.Not(), operand=ast.Name(id=name)):
            back = words.flags(name)[1]
            return ("is required", back) if back and name not in words.given else ("is not allowed", words.name(name))
        case ast.BoolOp(op=ast.Or(), values=parts):
            found = [_choice(part, words) for part in parts]
            return ("is required", listed(found)) if all(found) else None
        case ast.Compare(left=ast.BinOp(left=left, op=ast.Mod(), right=right), ops=[ast.Eq()]):
            return f"must be a multiple of {_shown(right, words)}", _shown(left, words)
        case ast.Compare(left=ast.Name(id=name), ops=[op], comparators=[right]):
            does = _compared(op, right, words)
            return (does, words.name(name)) if does else None
    return None


def _compared(op: ast.cmpop, right: ast.expr, words: Words) -> str:
    """Return what a comparison demands of the setting before it, if it is simple."""
    value = right.value if isinstance(right, ast.Constant) else UNKNOWN
    if (isinstance(op, ast.IsNot) and value is None) or (isinstance(op, ast.Eq) and value is True):
        return "is required"
    if isinstance(op, ast.Is | ast.Eq) and (value is None or value == 0):
        return "is not allowed"
    return f"{COMPARISONS[type(op)]} {_shown(right, words)}" if type(op) in COMPARISONS else ""


def _choice(part: ast.expr, words: Words) -> str:
    """Return the flag, with a value, by which one of several conditions holds."""
    match part:
        case ast.Compare(left=ast.Name(id=name), ops=[ast.Eq(), *_], comparators=[right, *_]):
            return f"{words.flags(name)[0]} {_shown(right, words)}"
    does, flag = _said(part, words) or ("", "")
    return flag if does == "is required" else ""


def _shown(node: ast.expr, words: Words) -> str:
    """Return an expression with the flags in place of the settings."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return listed([_shown(each, words) for each in node.elts], most=20)
    if isinstance(node, ast.BinOp) and type(node.op) in SIGNS:
        return f"{_shown(node.left, words)} {SIGNS[type(node.op)]} {_shown(node.right, words)}"
    if isinstance(node, ast.Constant):
        return str(node.value)
    return ast.unparse(_renamed(node, {name: ast.Name(words.name(name)) for name in _names(node)}))
