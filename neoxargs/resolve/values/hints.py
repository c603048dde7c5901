"""Hints for values of a wrong type that match a common mistake."""

from __future__ import annotations

import re

from neoxargs.resolve.yaml.line_patterns import MAX_QUOTED
from neoxargs.resolve.yaml.nodes import Node, Scalar, Sequence, format_node, read_plain

#: A number with separators between thousands: `1,000`, `1.000.000` (with one point, it is a number), `1'000`.
_GROUPED = re.compile(r"[-+]?[1-9]\d{0,2}(?=([,.'\u2019]))(\1\d{3})+")


def number_hint(node: Node, is_whole: bool = False) -> str:
    """Return the hint for a value that is not a number. is_whole: whether it has to be a whole number."""
    text = node.text.strip() if isinstance(node, Scalar) else ""
    if text.isdecimal() and text[0] == "0" and text.isascii():
        octal = text.lstrip("0") if set(text) <= set("01234567") else ""
        return f"write {int(text)}" + (f", or 0o{octal} if the number is octal" if octal else "")
    likely = [text.replace("e_", "e-"), text.replace("_", ""), text.replace(" ", "")]  # `1e_8`: typed `_` for `-`
    grouped = re.sub("[,.'\u2019]", "", text) if _GROUPED.fullmatch(text) else ""
    if not is_whole and re.fullmatch(r"[-+]?\d+,\d+([eE][-+]?\d+)?", text):
        decimal = text.replace(",", ".")
        return f"write {grouped}, or {decimal} if the comma is a decimal point" if grouped else f"write {decimal}"
    likely += [grouped] if grouped else []
    for number in likely:
        if number != text and isinstance(read_plain(number), int | float):
            return f"did you mean {number}?"
    return _with_unit(text) or typo_hint(node)


#: Suffixes of numbers and their factors.
_UNITS = {"%": 0.01, "k": 1_000, "m": 1_000_000, "b": 1_000_000_000, "g": 1_000_000_000, "t": 1_000_000_000_000}


def _with_unit(text: str) -> str:
    number = read_plain(text[:-1].strip())
    if not text or text[-1].lower() not in _UNITS or isinstance(number, bool) or not isinstance(number, int | float):
        return ""
    binary = f"{number * 1024} or " if text[-1] in "kK" and isinstance(number, int) else ""  # `seq_length: 2k`
    return f"write {binary}{number * _UNITS[text[-1].lower()]:.12g}"


#: Typographic quotation marks, as inserted by word processors.
_QUOTES = "\u201c\u201d\u201e\xab\xbb\u2018\u2019"


def typo_hint(node: Node) -> str:
    """Return a hint for a variable, a `#` without a space, typographic quotes or a trailing comma, else ""."""
    if not isinstance(node, Scalar):
        return without_brackets(node)
    text = node.text.strip()
    if re.search(r"\$\w|\$\{|\{\{", text):
        return "variables are not expanded; write the value itself, or pass it with --set"
    if "#" in text and not node.quoted:
        return "put a space before the `#` of a comment"
    if text.strip(_QUOTES) != text:
        return f"write {_cut(text.strip(_QUOTES))} with straight quotes or without quotes"
    return f"write {_cut(text.rstrip(',;'))} without the `{text[-1]}`" if text.endswith((",", ";")) else ""


def _cut(text: str) -> str:
    return text if len(text) < MAX_QUOTED else f"{text[:20]} …"


def without_brackets(node: Node) -> str:
    single = isinstance(node, Sequence) and len(node.items) == 1
    return f"write {format_node(node.items[0])} without the brackets" if single and isinstance(node, Sequence) else ""
