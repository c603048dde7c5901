"""Hints for values of a wrong type that match a common mistake."""

from __future__ import annotations

import json
import re
from typing import Any

from neoxargs.base.record import Record
from neoxargs.resolve.yaml.line_patterns import MAX_QUOTED
from neoxargs.resolve.yaml.nodes import Node, Scalar, Sequence, format_node, read_plain


class Hint(Record):
    """What to write instead of a value; false if nothing is known."""

    text: str = ""
    """The sentence for the user."""
    write: str = ""
    """The value to write, as YAML, if there is one."""
    is_certain: bool = False
    """Whether nothing else can be meant."""

    def __bool__(self) -> bool:
        return bool(self.text)


#: A number with separators between thousands: `1,000`, `1.000.000` (with one point, it is a number), `1'000`.
_GROUPED = re.compile(r"[-+]?[1-9]\d{0,2}(?=([,.'\u2019 ]))(\1\d{3})+")


def number_hint(node: Node, is_whole: bool = False) -> Hint:
    """Return the hint for a value that is not a number. is_whole: whether it has to be a whole number."""
    text = node.text.strip() if isinstance(node, Scalar) else ""
    if text.isdecimal() and text[0] == "0" and text.isascii():
        octal = text.lstrip("0") if set(text) <= set("01234567") else ""
        hint = f"write {int(text)}" + (f", or 0o{octal} if the number is octal" if octal else "")
        return Hint(hint, str(int(text)), not octal)
    grouped = re.sub("[,.'\u2019 ]", "", text) if _GROUPED.fullmatch(text) else ""
    if not is_whole and re.fullmatch(r"[-+]?\d+,\d+([eE][-+]?\d+)?", text):
        decimal = text.replace(",", ".")
        if grouped:
            return Hint(f"write {grouped}, or {decimal} if the comma is a decimal point")
        return Hint(f"write {decimal}", decimal, True)
    likely = [text.replace("e_", "e-"), text.replace("_", ""), text.replace(" ", "")]  # `1e_8`: typed `_` for `-`
    likely += [grouped] if grouped else []
    numbers = [number for number in likely if number != text and isinstance(read_plain(number), int | float)]
    if numbers:
        return Hint(f"did you mean {numbers[0]}?", numbers[0], numbers[-1] == grouped and len({*numbers}) == 1)
    return _with_unit(text) or typo_hint(node)


#: Suffixes of numbers and their factors.
_UNITS = {"%": 0.01, "k": 1_000, "m": 1_000_000, "b": 1_000_000_000, "g": 1_000_000_000, "t": 1_000_000_000_000}


def _with_unit(text: str) -> Hint:
    number = read_plain(text[:-1].strip())
    if not text or text[-1].lower() not in _UNITS or isinstance(number, bool) or not isinstance(number, int | float):
        return Hint()
    written = f"{number * _UNITS[text[-1].lower()]:.12g}"
    if text[-1] in "kK" and isinstance(number, int):  # `seq_length: 2k`
        return Hint(f"write {number * 1024} or {written}")
    return Hint(f"write {written}", written, text[-1] == "%")


#: Typographic quotation marks, as inserted by word processors.
_QUOTES = "\u201c\u201d\u201e\xab\xbb\u2018\u2019"


def typo_hint(node: Node) -> Hint:
    """Return a hint for a variable, a `#` without a space, typographic quotes or a trailing comma."""
    if not isinstance(node, Scalar):
        return without_brackets(node)
    text = node.text.strip()
    if re.search(r"\$\w|\$\{|\{\{", text):
        return Hint("variables are not expanded; write the value itself, or pass it with --set")
    if "#" in text and not node.quoted:
        return Hint("put a space before the `#` of a comment", text.replace("#", " #", 1), True)
    if (inner := text.strip(_QUOTES)) != text:
        return Hint(f"write {_cut(inner)} with straight quotes or without quotes", as_yaml(inner), True)
    if text.endswith((",", ";")):
        inner = text.rstrip(",;")
        return Hint(f"write {_cut(inner)} without the `{text[-1]}`", as_yaml(inner), True)
    return Hint()


def as_yaml(value: Any) -> str:
    """Return a value as one line of YAML; a text without quotes where it reads as it is meant."""
    is_word = isinstance(value, str) and re.fullmatch(r"[\w.+-]+", value)
    return str(value) if is_word else json.dumps(value, ensure_ascii=False)


def _cut(text: str) -> str:
    return text if len(text) < MAX_QUOTED else f"{text[:20]} …"


def without_brackets(node: Node) -> Hint:
    if not isinstance(node, Sequence) or len(node.items) != 1:
        return Hint()
    return Hint(f"write {format_node(node.items[0])} without the brackets", as_yaml(node.items[0].to_python()), True)
