"""What a program asserts of its settings, read from its source with the syntax tree.

The result is a list of steps in the order of the source. Each is `{"check": CONDITION}` or
`{"set": NAME, "to": VALUE}`, with `"if": CONDITION` if it is not always made. A name is that of a setting; of a
variable, it begins with an underscore. A check that needs more than settings, such as the version of another package,
is left out, and what is set to such a value is set to nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Step = dict[str, str]
#: Functions that a condition can call.
CALLS = ("len", "any", "all", "int", "bool")
ASSIGNMENTS = (ast.Assign, ast.AugAssign, ast.AnnAssign)
#: A message that a flag is refused.
REFUSAL = re.compile(r"no\s+longer\s+valid")


def steps_of(tree: ast.Module, classes: Mapping[str, ast.ClassDef], made: str, flags: Iterable[str]) -> list[Step]:
    """Return the steps of validate_args, and those of the configuration that is made of the arguments.

    flags: the arguments that the command line can give.
    """
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    steps = list(_steps(functions["validate_args"].body if "validate_args" in functions else tree.body, ()))
    making = [node for node in ast.walk(ast.parse(made)) if isinstance(node, ast.FunctionDef)]
    for each in making:
        if each.name == "core_transformer_config_from_args":  # whose keywords are the fields
            steps += _steps(each.body, ())
    for name in ("ModelParallelConfig", "TransformerConfig"):
        for node in classes[name].body if name in classes else ():
            if isinstance(node, ast.FunctionDef) and node.name == "__post_init__":
                steps += _steps(node.body, ())
    return _needed(steps, {*flags, "world_size"})


def replaced(tree: ast.Module, flags: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the settings that are parsed only to be refused, each with the flag that the message names."""
    for node in ast.walk(tree):
        tests: Sequence[ast.expr] = []
        if isinstance(node, ast.Assert) and node.msg and REFUSAL.search(_text(node.msg)):
            tests, text = [node.test], _text(node.msg)
        elif isinstance(node, ast.If) and any("exit()" in ast.unparse(each) for each in node.body):
            tests, text = [node.test], _text(node.body[0])
        for test in tests:
            name = re.match(r"args\.(\w+)( is None)?$", ast.unparse(test))
            found = [flag for flag in re.findall(r"--[\w-]*\w", text.partition("use ")[2]) if flag in flags]
            if name and REFUSAL.search(text) and found:
                yield name[1], found[0]


def _text(node: ast.AST) -> str:
    return " ".join(str(each.value) for each in ast.walk(node) if isinstance(each, ast.Constant))


class _Plain(ast.NodeTransformer):
    """Writes `args.x`, `self.x`, `kw_args["x"]` and `getattr(args, "x", None)` as `x`, and a variable as `_x`."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if isinstance(node.value, ast.Name) and node.value.id in ("args", "self"):
            return ast.Name(node.attr)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        is_field = (
            isinstance(node.value, ast.Name) and node.value.id == "kw_args" and isinstance(node.slice, ast.Constant)
        )
        return ast.Name(str(ast.literal_eval(node.slice))) if is_field else node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return node if node.id in CALLS else ast.Name(f"_{node.id}")

    def visit_Call(self, node: ast.Call) -> ast.expr:
        words = [ast.unparse(each).strip("'") for each in node.args]
        if ast.unparse(node.func) == "getattr" and words[0] in ("args", "self"):
            return ast.Name(words[1])
        self.generic_visit(node)
        return node


def _plain(node: ast.expr) -> ast.expr:
    found: ast.expr = _Plain().visit(ast.parse(ast.unparse(node), mode="eval").body)
    return found


def _not(node: ast.expr) -> ast.expr:
    """Return the opposite of a condition."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return node.operand
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        pairs: list[tuple[type[ast.cmpop], type[ast.cmpop]]] = [
            (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn), (ast.Lt, ast.GtE), (ast.Gt, ast.LtE),
        ]  # fmt: skip
        other = {one: two for pair in pairs for one, two in (pair, pair[::-1])}[type(node.ops[0])]
        return ast.Compare(node.left, [other()], node.comparators)
    return ast.UnaryOp(ast.Not(), node)


def _parts(node: ast.expr, kind: type[ast.boolop]) -> list[ast.expr]:
    """Return what `and` or `or` joins."""
    if isinstance(node, ast.BoolOp) and isinstance(node.op, kind):
        return [part for value in node.values for part in _parts(value, kind)]
    return [node]


def _steps(body: Sequence[ast.stmt], when: tuple[ast.expr, ...]) -> Iterator[Step]:
    for node in body:
        if isinstance(node, ast.Assert):
            for part in _parts(_plain(node.test), ast.And):
                yield _check(when, part)
        elif isinstance(node, ast.If):
            yield from _branch(node, when)
            if any(isinstance(each, ast.Return) for each in node.body):
                when = (*when, _not(_plain(node.test)))
        elif isinstance(node, ast.With):
            yield from _steps(node.body, when)
        elif isinstance(node, ASSIGNMENTS):
            yield from _assigned(node, when)
        elif isinstance(node, ast.For | ast.While | ast.Try):
            assigned = (each for each in ast.walk(node) if isinstance(each, ASSIGNMENTS))
            yield from ({**step, "to": ""} for each in assigned for step in _assigned(each, when))
        elif isinstance(node, ast.Delete | ast.Expr):  # `del args.x`, `args.x.append(1)`
            changed = re.findall(r"^(?:del )?(?:args|self)\.(\w+)(?:$|\.\w+\()", ast.unparse(node))
            yield from (_with(when, {"set": name, "to": ""}) for name in changed)


def _branch(node: ast.If, when: tuple[ast.expr, ...]) -> Iterator[Step]:
    test = _plain(node.test)
    if any(isinstance(each, ast.Raise) or "exit()" in ast.unparse(each) for each in node.body):
        for one in _parts(test, ast.Or):
            *before, last = _parts(one, ast.And)
            yield _check((*when, *before), _not(last))
    else:
        yield from _steps(node.body, (*when, test))
    yield from _steps(node.orelse, (*when, _not(test)))


def _assigned(node: ast.Assign | ast.AugAssign | ast.AnnAssign, when: tuple[ast.expr, ...]) -> Iterator[Step]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    for target in targets:
        if isinstance(target, ast.Tuple | ast.List):
            yield from (_with(when, {"set": ast.unparse(_plain(each)), "to": ""}) for each in target.elts)
            continue
        value = node.value
        if isinstance(node, ast.AugAssign):
            value = ast.BinOp(ast.parse(ast.unparse(target), mode="eval").body, node.op, node.value)
        to = _plain(value) if value else None
        yield _with(when, {"set": ast.unparse(_plain(target)), "to": ast.unparse(to) if to and _is_known(to) else ""})


def _check(when: tuple[ast.expr, ...], test: ast.expr) -> Step:
    return _with(when, {"check": ast.unparse(test)})


def _with(when: tuple[ast.expr, ...], step: Step) -> Step:
    parts = [part for each in when for part in _parts(each, ast.And)]
    joined = parts[0] if len(parts) == 1 else ast.BoolOp(ast.And(), parts)
    return ({"if": ast.unparse(joined)} if when else {}) | step


def _is_known(node: ast.AST) -> bool:
    """Return whether a value follows from settings alone."""
    for each in ast.walk(node):
        is_call = isinstance(each, ast.Call) and not (isinstance(each.func, ast.Name) and each.func.id in CALLS)
        others = (ast.Attribute, ast.Subscript, ast.Lambda, ast.JoinedStr, ast.GeneratorExp, ast.ListComp, ast.Starred)
        if is_call or isinstance(each, others):
            return False
    return True


def _needed(steps: Sequence[Step], flags: set[str]) -> list[Step]:
    """Return the checks of what the command line can give, and the assignments of what they name."""
    known = set(flags)
    while new := {step["set"] for step in steps if step.get("to") and _names(_parse(step["to"])) <= known} - known:
        known |= new
    found: list[Step] = []
    names: set[str] = set()
    for step in reversed(steps):
        parts = [_parse(part) for part in split(step.get("if", ""))]
        if "check" in step:
            parts.append(_parse(step["check"]))
            if not (all(map(_is_known, parts)) and _names(*parts) <= known):
                continue
        elif step["set"] not in names:
            continue
        elif step["to"]:
            parts.append(_parse(step["to"]))
        found.append(step)
        names |= _names(*parts)
    return found[::-1]


def split(text: str) -> list[str]:
    """Return the conditions that `and` joins."""
    return [ast.unparse(part) for part in _parts(_parse(text), ast.And)] if text else []


def _parse(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _names(*nodes: ast.AST) -> set[str]:
    return {each.id for node in nodes for each in ast.walk(node) if isinstance(each, ast.Name)} - {*CALLS}
