"""Mutations at a known place, where a problem must point.

Each takes a random generator and a source, and returns the mutant, or None if it does not apply to the source.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from neoxargs.base.problems import Place
from neoxargs.registry import REGISTRY, normal
from neoxargs.resolve.values.coerce import Mismatch, coerce
from neoxargs.resolve.yaml.nodes import Entry, Scalar, read_plain
from tests.fuzz.mutant import VALUES, Chance, Mutant, Spot
from tests.fuzz.sources import Leaf, Source

#: A `key: value` alone on its line.
PLAIN = re.compile(r"\w[\w-]*: +[\w.]+")


def misspelt_key(chance: Chance, source: Source) -> Mutant | None:
    leaf = chance.choice(source.leaves)
    key = leaf.entry.key
    at = chance.randrange(len(key))
    wrong = chance.choice(
        (key[:at] + key[at + 1 :], key[:at] + chance.choice("abxz_") + key[at:], key + "s", key.upper())
    )
    if not re.fullmatch(r"[A-Za-z][\w-]+", wrong) or _is_known(wrong):
        return None
    return _replaced(source, leaf.entry.place, key, wrong, "misspelt key")


def wrong_value(chance: Chance, source: Source) -> Mutant | None:
    leaf = chance.choice(source.leaves)
    wrong = chance.choice(VALUES)
    value = read_plain(wrong)
    if wrong[0] in "[{\"'" or not leaf.value.text or (value == "auto" and "DSC" in leaf.parameter.origins):
        return None
    parameter = leaf.parameter
    if value is None and (parameter.derived or parameter.default == "" or "DSL" in parameter.origins):
        return None  # counts as not set
    try:
        coerce(Scalar(value, wrong), leaf.parameter.type)
    except Mismatch:
        if "," in wrong and "{" in source.text:
            return None  # a comma ends the value inside braces
        return _replaced(source, leaf.value.place, "", wrong, "wrong value")
    return None


def unknown_key(chance: Chance, source: Source) -> Mutant | None:
    leaf = chance.choice(source.leaves)
    key = chance.choice(("frobnicate", "num_experts_per_tok", "qkv_slot_num", "hyena_filter_order", "my-own-key"))
    if _is_known(key):
        return None
    comma = "," if _line(source, leaf).strip().startswith(('"', "'")) else ""
    return _inserted(source, leaf.entry.place.line, f"{key}: 1{comma}", "unknown key", alone=leaf.entry)


def duplicate(chance: Chance, source: Source) -> Mutant | None:
    leaf = chance.choice(source.leaves)
    line = _line(source, leaf)
    if "{" in line or "}" in line or (line.strip()[0] in "\"'" and not line.rstrip().endswith(",")):
        return None
    mutant = _inserted(source, leaf.entry.place.line, line.strip(), "duplicate", alone=leaf.entry)
    return mutant._replace(spot=Spot(leaf.entry.place.line + 1, leaf.entry.place.column)) if mutant else None


def tab(chance: Chance, source: Source) -> Mutant | None:
    """A tab before a line of a block."""
    leaf = chance.choice(source.leaves)
    line = _line(source, leaf)
    if leaf.entry.place.column < 2 or source.text.lstrip().startswith("{") or not line.startswith(" "):
        return None
    return _with_line(source, leaf.entry.place.line, "\t" + line.lstrip(), "tab") if _is_block(line) else None


def unclosed_quote(chance: Chance, source: Source) -> Mutant | None:
    leaf = chance.choice(source.leaves)
    line = _line(source, leaf)
    if source.text.lstrip().startswith("{") or not _is_block(line) or "#" in line:
        return None
    wrong = f'{line[: leaf.value.place.column - 1]}"{leaf.value.text}'
    if '"' in source.text:
        return None
    return _with_line(source, leaf.entry.place.line, wrong, "unclosed quote")


def separated(by: str, kind: str) -> Callable[[Chance, Source], Mutant | None]:
    """`num_layers:4` or `num_layers = 4`, at the top of a block."""

    def mutate(chance: Chance, source: Source) -> Mutant | None:
        leaf = chance.choice(source.leaves)
        line = _line(source, leaf)
        if leaf.entry.place.column != 1 or not PLAIN.fullmatch(line):
            return None
        return _with_line(source, leaf.entry.place.line, re.sub(": +", by, line), kind)

    return mutate


def indented(chance: Chance, source: Source) -> Mutant | None:
    """A line at the top of a block moved to the right."""
    leaf = chance.choice(source.leaves)
    line = _line(source, leaf)
    above = source.lines[leaf.entry.place.line - 2] if leaf.entry.place.line > 1 else ""
    if leaf.entry.place.column != 1 or not PLAIN.fullmatch(line):
        return None
    if not PLAIN.fullmatch(above):
        return None
    return _with_line(source, leaf.entry.place.line, " " * chance.choice((1, 2, 4)) + line, "indented")


def _is_known(key: str) -> bool:
    return any(
        name.rpartition(".")[2] == normal(key) for name in (*REGISTRY.parameters, *REGISTRY.renamed, *REGISTRY.sections)
    )


def _is_block(line: str) -> bool:
    return bool(re.match(r"\s*[A-Za-z_][\w-]*: ", line))


def _line(source: Source, leaf: Leaf) -> str:
    return source.lines[leaf.entry.place.line - 1]


def _with_line(source: Source, number: int, line: str, kind: str, column: int = 0) -> Mutant:
    lines = list(source.lines)
    lines[number - 1] = line
    return Mutant("\n".join(lines) + "\n", kind, Spot(number, column))


def _replaced(source: Source, place: Place, old: str, new: str, kind: str) -> Mutant:
    """Replace a key or a value at a place; quotes around a key are kept."""
    start, end = place.column - 1, place.column - 1 + place.width
    was = place.text[start:end]
    line = place.text[:start] + (was.replace(old, new) if old else new) + place.text[end:]
    return _with_line(source, place.line, line, kind, place.column)


def _inserted(source: Source, after: int, line: str, kind: str, alone: Entry) -> Mutant | None:
    """Insert a line below another, with its indentation; None if the other shares its line."""
    above = source.lines[after - 1]
    indent = above[: len(above) - len(above.lstrip())]
    if len(indent) + 1 != alone.place.column or above.rstrip()[-1:] in "{[" or _ends_section(above):
        return None
    lines = list(source.lines)
    lines.insert(after, indent + line)
    return Mutant("\n".join(lines) + "\n", kind, Spot(after + 1, len(indent) + 1))


def _ends_section(line: str) -> bool:
    """True if the line lacks the comma that braces need, or has more than one entry."""
    content = re.sub(r"\s+#.*", "", line).rstrip()
    is_json = content.lstrip()[:1] in "\"'{"
    return content.count(": ") != 1 or "}" in content or (is_json and not content.endswith(","))


PLACED: tuple[Callable[[Chance, Source], Mutant | None], ...] = (
    misspelt_key, wrong_value, unknown_key, duplicate, tab, unclosed_quote, separated(":", "no space"),
    separated(" = ", "equals sign"), indented,
)  # fmt: skip
