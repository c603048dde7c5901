"""Convert a value to the type of its parameter, or raise Mismatch.

Only conversions that keep the meaning are made: `5e8` to int, `1` to float, a quoted `"10"` to a number, `LayerNorm` to
the choice `layernorm`, a number to a string with its text in the file, and one choice to a list of choices.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from collections.abc import Mapping as AnyMapping
from typing import Annotated, Any, Literal, get_args, get_origin

from neoxargs.base.problems import close_matches, is_one_edit
from neoxargs.resolve.keys.other_programs import our_choice
from neoxargs.resolve.values.describe_type import UNIONS, describe_type, is_list
from neoxargs.resolve.values.hints import Hint, as_yaml, number_hint, typo_hint, without_brackets
from neoxargs.resolve.yaml.nodes import Mapping, Node, Scalar, Sequence, format_node, node_of, read_plain

_NOTHING = type(None)
NO_HINT = Hint()


class Mismatch(Exception):
    """A value of a wrong type: the part of it (`[1]`, `.name`), the type expected there, and a hint."""

    def __init__(self, node: Node, wanted: Any, part: str = "", instead: Hint = NO_HINT) -> None:
        self.node, self.wanted, self.part, self.instead = node, wanted, part, instead
        super().__init__(node, wanted, part, instead)

    @property
    def advice(self) -> str:
        return self.instead.text

    def __str__(self) -> str:
        return self.sentence("the value")

    def sentence(self, name: str) -> str:
        """`hidden_size ("big") must be a whole number, at least 1`."""
        name, wanted = name + self.part, describe_type(self.wanted)
        if isinstance(self.node, Mapping):
            return f"{name} is not a section; it must be {wanted}"
        if isinstance(self.node, Scalar) and self.node.value is None:
            return f"{name} has no value; it must be {wanted}"
        return f"{name} ({format_node(self.node)}) must be {wanted}"


def coerce(given: Any, wanted: Any) -> Any:
    """Return the value converted to the type `wanted`. given: a node or a Python value. Raises Mismatch."""
    return _fit(node_of(given), wanted)


def _fit(node: Node, wanted: Any) -> Any:
    if wanted in (Any, object):  # unchanged, but a float must be finite, as in JSON
        if isinstance(node, Scalar):
            return _float(node, float) if isinstance(node.value, float) else node.value
        return _list(node, list) if isinstance(node, Sequence) else _dict(node, dict)
    origin = get_origin(wanted) or wanted
    if origin in UNIONS:
        return _union(node, wanted)
    return _FITS[origin](node, wanted)


def _union(node: Node, wanted: Any) -> Any:
    """Convert to the member whose type the value already has, or else to the first possible one."""
    members = sorted(get_args(wanted), key=lambda member: not _is_already(node, member))  # ties stay as declared
    deepest = Mismatch(node, wanted)
    for member in members:
        try:
            return _fit(node, member)
        except Mismatch as mismatch:
            if mismatch.part:  # an error in one part is more specific than "none of these types"
                deepest = mismatch
            # A hint to write brackets is of use only where a list is the only type.
            if not (is_list(member) and isinstance(node, Scalar)) or len(members) == 1 + (_NOTHING in members):
                deepest.instead = deepest.instead or mismatch.instead
    raise deepest


def _is_already(node: Node, member: Any) -> bool:
    if get_origin(member) is Annotated:
        member = get_args(member)[0]
    if isinstance(node, Scalar):
        choices = get_args(member) if get_origin(member) is Literal else ()
        return type(node.value) is member or any(type(node.value) is type(c) and node.value == c for c in choices)
    return (get_origin(member) or member) is (list if isinstance(node, Sequence) else dict)


def _annotated(node: Node, wanted: Any) -> Any:
    base, *bounds = get_args(wanted)
    try:
        value = _fit(node, base)
    except Mismatch as mismatch:
        raise Mismatch(node, wanted, instead=mismatch.instead) from None
    if not all(bound.holds(value) for bound in bounds):
        raise Mismatch(node, wanted)
    return value


def _literal(node: Node, wanted: Any) -> Any:
    choices = get_args(wanted)
    if not isinstance(node, Scalar):
        raise Mismatch(node, wanted, instead=without_brackets(node))
    number = _number(node)
    # reversed: of choices that differ only in case, the first one is used
    words = {choice.lower(): choice for choice in reversed(choices) if isinstance(choice, str)}
    if isinstance(node.value, str) and node.value in choices:
        return node.value
    if node.text.lower() in words:
        return words[node.text.lower()]
    for choice in choices:
        if not isinstance(choice, str) and number == choice:
            return choice
    written = node.text.lower()
    meant = our_choice(written) or written
    if meant in words:
        raise Mismatch(node, wanted, instead=Hint(f"write {words[meant]}", str(words[meant]), True))
    raise Mismatch(node, wanted, instead=typo_hint(node) or _similar(written, words))


def _similar(written: str, words: AnyMapping[str, Any]) -> Hint:
    """Return a hint for a misspelt choice. words: each choice by its name in lower case."""
    found = [str(words[word]) for word in close_matches(written, words)]
    hint = f"did you mean {' or '.join(found)}?" if found else ""
    near = [word for word in words if is_one_edit(written, word)]
    return Hint(hint, found[0] if len(found) == 1 else "", [str(words[word]) for word in near] == found)


def _list(node: Node, wanted: Any) -> Any:
    element = (get_args(wanted) or (Any,))[0]
    if isinstance(node, Scalar) and node.value is not None and get_origin(element) is Literal:
        return [_fit(node, element)]  # one choice without brackets cannot mean anything else
    if not isinstance(node, Sequence):
        raise Mismatch(node, wanted, instead=_in_brackets(node, element))
    return [_part(item, element, f"[{index}]") for index, item in enumerate(node.items)]


def _dict(node: Node, wanted: Any) -> Any:
    element = (get_args(wanted) or (Any, Any))[1]
    if not isinstance(node, Mapping):
        raise Mismatch(node, wanted)
    return {entry.key: _part(entry.value, element, f".{entry.key}") for entry in node.entries}


def _part(node: Node, wanted: Any, part: str) -> Any:
    try:
        return _fit(node, wanted)
    except Mismatch as inner:
        raise Mismatch(inner.node, inner.wanted, part + inner.part, inner.instead) from None


def _bool(node: Node, wanted: Any) -> bool:
    value = read_plain(node.text.strip()) if isinstance(node, Scalar) else None
    if isinstance(value, bool):
        return value
    is_digit = isinstance(value, int | float) and value in (0, 1)
    if is_digit:
        word = str(bool(value)).lower()
        raise Mismatch(node, wanted, instead=Hint(f"write {word}", word, True))
    word = node.text.strip().lower() if isinstance(node, Scalar) else ""
    raise Mismatch(node, wanted, instead=typo_hint(node) or _similar(word, {"true": "true", "false": "false"}))


def _int(node: Node, wanted: Any) -> int:
    value = _number(node)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, int):
        return value
    raise Mismatch(node, wanted, instead=number_hint(node, is_whole=True))


def _float(node: Node, wanted: Any) -> float:
    value = _number(node)
    try:
        if value is not None and math.isfinite(value):
            return float(value)
    except OverflowError:  # an int above 1e308
        pass
    raise Mismatch(node, wanted, instead=number_hint(node) if value is None else Hint("write a finite number"))


def _number(node: Node) -> int | float | None:
    """Return the number of a scalar, quoted or not; None if it is not a number."""
    if not isinstance(node, Scalar):
        return None
    value = read_plain(node.value.strip()) if isinstance(node.value, str) else node.value
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _text(node: Node, wanted: Any) -> str:
    if not isinstance(node, Scalar) or node.value is None:
        raise Mismatch(node, wanted, instead=without_brackets(node))
    if isinstance(node.value, bool):
        hint = Hint(f"put `{node.text}` in quotes if it is meant as a string", f'"{node.text}"', True)
        raise Mismatch(node, wanted, instead=hint)
    return node.text


def _nothing(node: Node, wanted: Any) -> None:
    if not isinstance(node, Scalar) or node.value is not None:
        raise Mismatch(node, wanted)


def _in_brackets(node: Node, element: Any) -> Hint:
    if not isinstance(node, Scalar):
        return NO_HINT
    if node.text.startswith("(") and "," in node.text and not node.quoted:  # a tuple of Python
        text = node.text.strip("()")
        return _in_brackets(node._replace(value=text, text=text), element)
    try:
        _fit(node, element)
        return Hint(f"write [{format_node(node)}]", f"[{as_yaml(node.value) if node.quoted else node.text}]", True)
    except Mismatch:
        items = [item.strip() for item in node.text.split(",")]
    try:  # items that are separated by commas in one string
        values = [coerce(read_plain(item), element) for item in items]
    except Mismatch:
        return NO_HINT
    return Hint(f"write {values}", json.dumps(values), True) if len(values) > 1 else NO_HINT


_FITS: dict[Any, Callable[[Node, Any], Any]] = {
    Annotated: _annotated,
    Literal: _literal,
    list: _list,
    dict: _dict,
    bool: _bool,
    int: _int,
    float: _float,
    str: _text,
    _NOTHING: _nothing,
}
