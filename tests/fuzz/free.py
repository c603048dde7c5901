"""Mutations at any place: each takes a random generator and a text and returns the new text."""

from __future__ import annotations

import re
import string
from collections.abc import Callable
from typing import Any, get_args

from neoxargs.registry import REGISTRY, normal
from neoxargs.resolve.values.coerce import Mismatch, coerce
from neoxargs.resolve.yaml.nodes import Scalar, read_plain
from tests.fuzz.mutant import VALUES, Chance

WORDS = ("*a", "&a b", "!!str", "!!python/object:os.system", "|", ">", "'", '"', "[", "{", "]", "}", "- a", "%x", "@x")
CHARACTERS = "{}[]:,#&*!|>'\"%@`-?~\t \n\r\\0123.eE_<=\x00\x07\x85\xa0\u2028\u202eé\ufeff\U0001f600"


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
    """Replace some values at random."""
    spots = [match.span(1) for match in re.finditer(r": *([^\s,{}\[\]]+)", text)]
    for start, end in sorted(chance.sample(spots, min(len(spots), chance.randrange(1, 5))), reverse=True):
        text = text[:start] + chance.choice((*VALUES, *WORDS)) + text[end:]
    return text


def keys_written(chance: Chance, text: str) -> str:
    """Add random parameters with random values, nested in their sections."""
    names = list(REGISTRY.parameters)
    added = []
    for _ in range(chance.randrange(1, 5)):
        *sections, last = chance.choice(names).split(".")
        value = chance.choice(VALUES)
        added.append("".join(f"{section}: {{" for section in sections) + f"{last}: {value}" + "}" * len(sections))
    return _with_keys(text, added)


def _with_keys(text: str, lines: list[str]) -> str:
    """Add lines at the end, or inside the braces; outside braces they replace lines with the same keys."""
    if "{" in text.split("\n")[0] and "}" in text:
        cut = text.rindex("}")
        return f"{text[:cut].rstrip().rstrip(',')},\n" + ",\n".join(lines) + text[cut:]
    keys = [line.partition(":")[0] for line in lines]
    kept = [line for line in text.split("\n") if normal(line.partition(":")[0].strip("\"' ")) not in keys]
    return "\n".join([*kept, *lines, ""])


def keys_fitting(chance: Chance, text: str) -> str:
    """Add top-level parameters with values of their types, to exercise the rules."""
    added = []
    for name in chance.choices(
        [name for name in REGISTRY.parameters if "." not in name], k=chance.choice((1, 1, 2, 5))
    ):
        wanted = REGISTRY.parameters[name].type
        for value in chance.sample([*VALUES, *map(str, _choices(wanted)), "1", "2", "3", "8", "64", "0.1"], 12):
            try:
                coerce(Scalar(read_plain(value), value), wanted)
            except Mismatch:
                continue
            added.append(f"{name}: {value}")
            break
    return _with_keys(text, added)


def _choices(wanted: Any) -> list[str]:
    own = [choice for choice in get_args(wanted) if isinstance(choice, str)]
    return own + [choice for inner in get_args(wanted) if not isinstance(inner, str) for choice in _choices(inner)]


def anchors(chance: Chance, text: str) -> str:
    forms = ("x: &x {enabled: true}\nfp16: *x\nbf16: *x\n", "<<: {seed: 1}\n", "<<: [*none, 3]\n",
             "fp16: &f {<<: *f}\n", "_: &d {lr: 1e-4, type: Adam}\noptimizer:\n  <<: *d\n  type: Lion\n",
             "&k num_layers: 3\n*k : 4\n")  # fmt: skip
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
    """Insert random printable characters, or replace everything by them."""
    rubbish = "".join(chance.choices(string.printable, k=chance.choice((1, 20, 400))))
    at = chance.randrange(len(text) + 1)
    return rubbish if chance.random() < 0.3 else text[:at] + rubbish + text[at:]


def repeated(chance: Chance, text: str) -> str:
    """Repeat one character very often, which is slow for a parser that backtracks."""
    at = chance.randrange(len(text) + 1)
    return text[:at] + chance.choice("{[(\"'#:,- \n\\$`*&x\t") * chance.choice((50, 1000, 20_000)) + text[at:]


def newlines(chance: Chance, text: str) -> str:
    return text.replace("\n", chance.choice(("\r\n", "\r", "\u2028", "\n\n", "\x85")))


def keys_swapped(chance: Chance, text: str) -> str:
    """Replace every `_` by `-`, remove or change quotes, or change to upper case."""
    return chance.choice(
        (text.replace("_", "-"), text.replace('"', ""), text.replace('"', "'"), text.replace(": ", ":"), text.upper())
    )


FREE: tuple[Callable[[Chance, str], str], ...] = (
    lines_moved, lines_moved, characters, characters, values, values, keys_written, keys_written, keys_written,
    keys_fitting, keys_fitting, keys_fitting, keys_fitting, anchors, bomb, deep, deep_indentation, cut, noise, repeated,
    newlines, keys_swapped,
)  # fmt: skip
