"""The nodes of a YAML document, each with its place, and the interpretation of scalars.

Plain numbers follow YAML 1.2 (`1e-4`, `5e8`, `0o17`), because PyYAML's YAML 1.1 reads `1e-4` as text. As in PyYAML,
`yes`, `no`, `on` and `off` are booleans and `1_000_000` is a number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping as AnyMapping
from typing import Any, NamedTuple

from neoxargs.base.problems import Place, printable

NOWHERE = Place("", 0, 0)


class Scalar(NamedTuple):
    """A single value: the Python value, its text in the file, and whether quotes (or `|`, `>`) made it a string."""

    value: Any
    text: str
    quoted: bool = False
    place: Place = NOWHERE

    def to_python(self) -> Any:
        return self.value


class Sequence(NamedTuple):
    items: list[Node]
    place: Place = NOWHERE

    def to_python(self) -> Any:
        return [item.to_python() for item in self.items]


class Entry(NamedTuple):
    """A key as spelled and its value; `place` is that of the key."""

    key: str
    value: Node
    place: Place


class Mapping(NamedTuple):
    entries: list[Entry]
    place: Place = NOWHERE

    def to_python(self) -> Any:
        return {entry.key: entry.value.to_python() for entry in self.entries}


Node = Scalar | Sequence | Mapping


def is_null(node: Node) -> bool:
    """True for `key:`, `key: null` and `key: ~`."""
    return isinstance(node, Scalar) and node.value is None


_WORDS: dict[str, bool | float | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL", "None")),  # None: as in settings copied from Python
    **dict.fromkeys(("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
    **{sign + word: float(sign + "inf") for sign in ("", "+", "-") for word in (".inf", ".Inf", ".INF")},
}
_INT = re.compile(r"[-+]?(0x[0-9a-fA-F_]+|0o[0-7_]+|0b[01_]+|0|[1-9][0-9_]*)")
_FLOAT = re.compile(r"[-+]?((\.[0-9][0-9_]*|[0-9][0-9_]*\.[0-9_]*)([eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+)")


def read_plain(text: str) -> Any:
    """Return the value of an unquoted scalar. `0123` stays a string, because it is 83 in YAML 1.1 and 123 in 1.2."""
    if text in _WORDS:
        return _WORDS[text]
    try:
        if _INT.fullmatch(text):
            # Base 0: 0x, 0o and 0b are read as in Python.
            return int(text, 0)
        if _FLOAT.fullmatch(text):
            return float(text)
    except ValueError:  # `1__0`, or more digits than int() accepts
        pass
    return text


def node_of(value: Any) -> Node:
    """Convert a Python value that did not come from a file to a node; a node is returned unchanged."""
    if isinstance(value, Scalar | Sequence | Mapping):
        return value
    if isinstance(value, AnyMapping):
        return Mapping([Entry(str(key), node_of(item), NOWHERE) for key, item in value.items()])
    if isinstance(value, list | tuple):
        return Sequence([node_of(item) for item in value])
    text = value if isinstance(value, str) else json.dumps(value)
    return Scalar(value, text, isinstance(value, str))


def format_node(node: Node, limit: int = 40) -> str:
    """Format a value for a message: strings in quotes, others as in the file; longer than `limit` is cut."""
    if isinstance(node, Scalar):
        text = json.dumps(node.value, ensure_ascii=False) if isinstance(node.value, str) else node.text or "null"
    else:
        text = json.dumps(node.to_python(), ensure_ascii=False)
    text = printable(text)
    return text if len(text) <= limit else text[: limit - 2] + " …"
