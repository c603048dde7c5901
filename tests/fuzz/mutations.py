"""What can happen to a configuration, one function each; where the place is known, it is handed on to be looked for.

A mutation takes the chance and a text (and the tree of it, if its place is to be known) and returns the new text.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Callable
from typing import Any, NamedTuple, get_args

from sources import Leaf, Source

from neoxargs.problems import Place
from neoxargs.registry import REGISTRY, normal
from neoxargs.resolve.check import Mismatch, conform
from neoxargs.resolve.nodes import Entry, Scalar, read_plain

Chance = random.Random


class Spot(NamedTuple):
    """Where a problem must point: a line and, if that is certain too, a column (both from 1)."""

    line: int
    column: int = 0


class Mutant(NamedTuple):
    """A text to be judged, what happened to it, and where a problem must be told (None: nowhere in particular)."""

    text: str
    kind: str
    spot: Spot | None = None


VALUES = (
    "null", "true", "yes", "auto", "1e400", ".nan", "-.inf", "[]", "{}", '""', '"10"', "-1", "0", "0.5", "5e8", "1e-4",
    "1.0e_8", "1,000", "1_000", "0x10", "0123", "1__0", "--1", "\uff11\uff12", "dynamic", "[[1]]", "{a: 1}",
    "[a, null]", '[[["global"], 3]]', "99999999999999999999", "9" * 5000, "-" + "9" * 400, "1e-400", "cpu", "x" * 2000,
    "é\u200b", "all",
)  # fmt: skip
WORDS = ("*a", "&a b", "!!str", "!!python/object:os.system", "|", ">", "'", '"', "[", "{", "]", "}", "- a", "%x", "@x")
CHARACTERS = "{}[]:,#&*!|>'\"%@`-?~\t \n\r\\0123.eE_<=\x00\x07\x85\xa0\u2028\u202eé\ufeff\U0001f600"


# -- mutations whose place is known ----------------------------------------------------------------------------------


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
    try:
        conform(Scalar(value, wrong), leaf.parameter.type)
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


def no_space(chance: Chance, source: Source) -> Mutant | None:
    """`num_layers:4`, at the top of a block."""
    leaf = chance.choice(source.leaves)
    line = _line(source, leaf)
    if leaf.entry.place.column != 1 or not re.fullmatch(r"\w[\w-]*: +[\w.]+", line):
        return None
    return _with_line(source, leaf.entry.place.line, re.sub(": +", ":", line), "no space")


def equals_sign(chance: Chance, source: Source) -> Mutant | None:
    """`num_layers = 4`, at the top of a block."""
    leaf = chance.choice(source.leaves)
    line = _line(source, leaf)
    if leaf.entry.place.column != 1 or not re.fullmatch(r"\w[\w-]*: +[\w.]+", line):
        return None
    return _with_line(source, leaf.entry.place.line, re.sub(": +", " = ", line), "equals sign")


def indented(chance: Chance, source: Source) -> Mutant | None:
    """A line at the top of a block moved to the right."""
    leaf = chance.choice(source.leaves)
    line = _line(source, leaf)
    above = source.lines[leaf.entry.place.line - 2] if leaf.entry.place.line > 1 else ""
    if leaf.entry.place.column != 1 or not re.fullmatch(r"\w[\w-]*: +[\w.]+", line):
        return None
    if not re.fullmatch(r"\w[\w-]*: +[\w.]+", above):
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
    """A key or a value at a place written otherwise; quotes around a key stay."""
    start, end = place.column - 1, place.column - 1 + place.width
    was = place.text[start:end]
    line = place.text[:start] + (was.replace(old, new) if old else new) + place.text[end:]
    return _with_line(source, place.line, line, kind, place.column)


def _inserted(source: Source, after: int, line: str, kind: str, alone: Entry) -> Mutant | None:
    """A new line below another, with its indentation; None where the other is not alone on its line."""
    above = source.lines[after - 1]
    indent = above[: len(above) - len(above.lstrip())]
    if len(indent) + 1 != alone.place.column or above.rstrip()[-1:] in "{[" or _ends_section(above):
        return None
    lines = list(source.lines)
    lines.insert(after, indent + line)
    return Mutant("\n".join(lines) + "\n", kind, Spot(after + 1, len(indent) + 1))


def _ends_section(line: str) -> bool:
    """Does the entry end without the comma that braces need, or with more than one entry?"""
    content = re.sub(r"\s+#.*", "", line).rstrip()
    is_json = content.lstrip()[:1] in "\"'{"
    return content.count(": ") != 1 or "}" in content or (is_json and not content.endswith(","))


PLACED: tuple[Callable[[Chance, Source], Mutant | None], ...] = (
    misspelt_key, wrong_value, unknown_key, duplicate, tab, unclosed_quote, no_space, equals_sign, indented,
)  # fmt: skip


# -- mutations that can end anywhere ---------------------------------------------------------------------------------


def lines_moved(chance: Chance, text: str) -> str:
    lines = text.split("\n")
    for _ in range(chance.randrange(1, 4)):
        at, other = chance.randrange(len(lines)), chance.randrange(len(lines))
        what = chance.randrange(3)
        if what == 0 and len(lines) > 1:
            del lines[at]
            continue
        if what == 1:
            lines.insert(at, lines[other])
        else:
            lines[at], lines[other] = lines[other], lines[at]
    return "\n".join(lines)


def characters(chance: Chance, text: str) -> str:
    for _ in range(chance.randrange(1, 6)):
        at = chance.randrange(len(text) + 1)
        text = text[:at] + chance.choice(CHARACTERS) * chance.choice((1, 1, 1, 3)) + text[at + chance.randrange(3) :]
    return text


def values(chance: Chance, text: str) -> str:
    """Some values become others, with no regard for anything."""
    spots = [match.span(1) for match in re.finditer(r": *([^\s,{}\[\]]+)", text)]
    for start, end in sorted(chance.sample(spots, min(len(spots), chance.randrange(1, 5))), reverse=True):
        text = text[:start] + chance.choice((*VALUES, *WORDS)) + text[end:]
    return text


def keys_written(chance: Chance, text: str) -> str:
    """Any parameters with any values, at the top or as dotted sections."""
    names = list(REGISTRY.parameters)
    added = []
    for _ in range(chance.randrange(1, 5)):
        *sections, last = chance.choice(names).split(".")
        value = chance.choice(VALUES)
        added.append("".join(f"{section}: {{" for section in sections) + f"{last}: {value}" + "}" * len(sections))
    return _with_keys(text, added)


def _with_keys(text: str, lines: list[str]) -> str:
    """More lines at the end, or inside the braces; keys that stand there already, mostly instead of those."""
    if "{" in text.split("\n")[0] and "}" in text:
        cut = text.rindex("}")
        return f"{text[:cut].rstrip().rstrip(',')},\n" + ",\n".join(lines) + text[cut:]
    keys = [line.partition(":")[0] for line in lines]
    kept = [line for line in text.split("\n") if normal(line.partition(":")[0].strip("\"' ")) not in keys]
    return "\n".join([*kept, *lines, ""])


def keys_fitting(chance: Chance, text: str) -> str:
    """Parameters at the top with values that fit their types, so that the rules get something to think about."""
    added = []
    for name in chance.choices(
        [name for name in REGISTRY.parameters if "." not in name], k=chance.choice((1, 1, 2, 5))
    ):
        wanted = REGISTRY.parameters[name].type
        for value in chance.sample([*VALUES, *map(str, _choices(wanted)), "1", "2", "3", "8", "64", "0.1"], 12):
            try:
                conform(Scalar(read_plain(value), value), wanted)
            except Mismatch:
                continue
            added.append(f"{name}: {value}")
            break
    return _with_keys(text, added)


def _choices(wanted: Any) -> list[str]:
    own = [choice for choice in get_args(wanted) if isinstance(choice, str)]
    return own + [choice for inner in get_args(wanted) if not isinstance(inner, str) for choice in _choices(inner)]


def anchors(chance: Chance, text: str) -> str:
    forms = (
        "x: &x {enabled: true}\nfp16: *x\nbf16: *x\n",
        "<<: {seed: 1}\n",
        "<<: [*none, 3]\n",
        "fp16: &f {<<: *f}\n",
        "_: &d {lr: 1e-4, type: Adam}\noptimizer:\n  <<: *d\n  type: Lion\n",
        "&k num_layers: 3\n*k : 4\n",
    )
    return text + "\n" + chance.choice(forms)


def bomb(chance: Chance, text: str) -> str:
    width, depth = chance.choice((2, 10, 100)), chance.choice((5, 9, 40))
    levels = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * width)}]\n" for i in range(1, depth))
    return f"{text}\na0: &a0 [x, x]\n{levels}"


def deep(chance: Chance, text: str) -> str:
    count = chance.choice((10, 31, 32, 33, 500, 20_000))
    opening, closing = chance.choice((("[", "]"), ("{a: ", "}"), ("(", ")")))
    tail = closing * (count if chance.random() < 0.5 else 0)
    return f"{text}\nseed: {opening * count}1{tail}\n"


def deep_indentation(chance: Chance, text: str) -> str:
    return text + "\n" + "\n".join(" " * i + "a:" for i in range(chance.choice((10, 40, 400)))) + "\n"


def cut(chance: Chance, text: str) -> str:
    start, end = sorted(chance.randrange(len(text) + 1) for _ in range(2))
    return text[start:end] if chance.random() < 0.5 else text[:start] + text[end:]


def noise(chance: Chance, text: str) -> str:
    """Printable rubbish in the middle, or instead of everything."""
    rubbish = "".join(chance.choices(string.printable, k=chance.choice((1, 20, 400))))
    at = chance.randrange(len(text) + 1)
    return rubbish if chance.random() < 0.3 else text[:at] + rubbish + text[at:]


def repeated(chance: Chance, text: str) -> str:
    """One character very often, which is where a reader that looks back is slow."""
    at = chance.randrange(len(text) + 1)
    return text[:at] + chance.choice("{[(\"'#:,- \n\\$`*&x\t") * chance.choice((50, 1000, 20_000)) + text[at:]


def newlines(chance: Chance, text: str) -> str:
    return text.replace("\n", chance.choice(("\r\n", "\r", "\u2028", "\n\n", "\x85")))


def keys_swapped(chance: Chance, text: str) -> str:
    """Every `_` a `-`, or quotes gone, or other quotes."""
    return chance.choice(
        (text.replace("_", "-"), text.replace('"', ""), text.replace('"', "'"), text.replace(": ", ":"), text.upper())
    )


FREE: tuple[Callable[[Chance, str], str], ...] = (
    lines_moved, lines_moved, characters, characters, values, values, keys_written, keys_written, keys_written,
    keys_fitting, keys_fitting, keys_fitting, keys_fitting, anchors, bomb, deep, deep_indentation, cut, noise, repeated,
    newlines, keys_swapped,
)  # fmt: skip
