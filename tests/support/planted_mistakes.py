"""Mistakes that people make in configurations, each planted at a random place of a text; None where it cannot be."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random

Plant = Callable[[str, Random], str | None]
#: A line with one key and a value; its parts are indentation, quote, key, what is between, value, and the rest.
LINE = re.compile(r"^( *)([\"']?)([a-z][\w-]*)\2( *: +)([^\s,#{}\[\]\"']+|\"[^\"]*\")(,?[ ]*(?:#.*)?)$", re.M)
#: A section in a block with its first key.
BLOCK = re.compile(r"^([a-z]\w*):\n((?:  +[^\n]*\n)+)", re.M)


def _in_line(text: str, chance: Random, change: Callable[[re.Match[str]], str | None], wanted: str = "") -> str | None:
    """Change a random line whose value matches."""
    lines = [match for match in LINE.finditer(text) if re.fullmatch(wanted or ".*", match[5])]
    chance.shuffle(lines)
    for match in lines:
        if (new := change(match)) is not None:
            return text[: match.start()] + new + text[match.end() :]
    return None


def _with_key(match: re.Match[str], key: str) -> str:
    return f"{match[1]}{match[2]}{key}{match[2]}{match[4]}{match[5]}{match[6]}"


def _with_value(match: re.Match[str], value: str) -> str:
    return f"{match[1]}{match[2]}{match[3]}{match[2]}{match[4]}{value}{match[6]}"


def in_line(change: Callable[[re.Match[str]], str | None], wanted: str = "") -> Plant:
    """Change a random line whose value matches."""
    return lambda text, chance: _in_line(text, chance, change, wanted)


def at_letter(change: Callable[[str, int], str]) -> Plant:
    """Change the key of a random line at a random letter."""

    def plant(text: str, chance: Random) -> str | None:
        at = chance.random()
        return _in_line(text, chance, lambda m: _with_key(m, change(m[3], int(at * len(m[3])))))

    return plant


def letters_swapped(text: str, chance: Random) -> str | None:
    at = chance.random()

    def swapped(m: re.Match[str]) -> str | None:
        i, key = int(at * (len(m[3]) - 1)), m[3]
        new = key[:i] + key[i : i + 2][::-1] + key[i + 2 :]
        return _with_key(m, new) if new != key and new[0].isalpha() else None

    return _in_line(text, chance, swapped)


def dotted(text: str, chance: Random) -> str | None:
    """The first key of a section that has only one, or several keys each with the section's name."""
    return _in_section(text, chance, lambda name, lines: "".join(f"{name}.{line}" for line in lines))


def outdented(text: str, chance: Random) -> str | None:
    return _in_section(text, chance, lambda name, lines: f"{name}:\n" + "".join(lines))


def _in_section(text: str, chance: Random, write: Callable[[str, list[str]], str]) -> str | None:
    """Write a section anew. write: from its name, and its lines without indentation."""
    for block in _shuffled(BLOCK, text, chance):
        lines = [LINE.fullmatch(line) for line in block[2].splitlines()]
        if all(lines):
            new = write(block[1], [f"{line[0].lstrip()}\n" for line in lines if line])
            return text[: block.start()] + new + text[block.end() :]
    return None


def moved(text: str, chance: Random) -> str | None:
    """A key of a section at the top level."""
    nested = [match for match in LINE.finditer(text) if len(match[1]) >= 2 and not match[2]]
    if not nested or text.lstrip("# \n").startswith("{"):
        return None
    match = chance.choice(nested)
    rest = text[: match.start()] + text[match.end() + 1 :]
    return rest.rstrip("\n") + f"\n{match[0].lstrip()}\n"


def _shuffled(pattern: re.Pattern[str], text: str, chance: Random) -> list[re.Match[str]]:
    found = list(pattern.finditer(text))
    chance.shuffle(found)
    return found


#: By name, to be planted in turn.
PLANTS: dict[str, Plant] = {
    "letter left out": at_letter(lambda key, i: key[:i] + key[i + 1 :]),
    "letter twice": at_letter(lambda key, i: key[: i + 1] + key[i:]),
    "letters swapped": letters_swapped,
    "capital": in_line(lambda m: _with_key(m, m[3].title())),
    "underscore left out": in_line(lambda m: _with_key(m, m[3].replace("_", "", 1)) if "_" in m[3] else None),
    "flag": in_line(lambda m: None if m[1] or m[2] else f"--{m[3]} {m[5]}{m[6]}"),
    "equals sign": in_line(lambda m: None if m[1] or m[2] else f"{m[3]} = {m[5]}{m[6]}"),
    "no space": in_line(lambda m: None if m[2] else f"{m[1]}{m[3]}:{m[5]}{m[6]}"),
    "foreign space": in_line(lambda m: None if m[2] else f"{m[1]}{m[3]}:\u00a0{m[5]}{m[6]}"),
    "foreign comment": in_line(lambda m: f"{m[1]}// a note\n{m[0]}"),
    "tab": in_line(lambda m: "\t" + m[0].lstrip() if m[1] and not m[2] else None),
    "one space more": in_line(lambda m: None if m[2] else " " + m[0]),
    "truth as number": in_line(lambda m: _with_value(m, str(int(m[5] == "true"))), "true|false"),
    "truth misspelt": in_line(lambda m: _with_value(m, {"true": "ture", "false": "flase"}[m[5]]), "true|false"),
    "choice misspelt": in_line(lambda m: _with_value(m, m[5][:-1] + m[5][-1] * 2), "[a-z]{4,}"),
    "comma": in_line(lambda m: None if m[2] else _with_value(m, f"{m[5]},")),
    "thousands": in_line(lambda m: _with_value(m, f"{int(m[5]):,}"), r"\d{4,}"),
    "brackets": in_line(lambda m: _with_value(m, f"[{m[5]}]"), r"\d+"),
    "twice": in_line(lambda m: f"{m[0]}\n{m[0]}" if not m[2] or "," in m[6] else None),
    "comma left out": in_line(lambda m: m[0].replace(m[6], m[6][1:]) if m[2] and m[6].startswith(",") else None),
    "dotted": dotted,
    "outdented": outdented,
    "moved": moved,
}
