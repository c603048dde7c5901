"""Names that other programs use for our parameters and their values, for suggestions.

`other_programs.json` lists them, as of 2026, with the source for each program. It is loaded when the first unknown key
or value is found. Flags of Megatron-LM are in the registry.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from functools import cache
from typing import Any

from neoxargs.base.problems import close_matches
from neoxargs.base.record import Record
from neoxargs.base.shipped import table_beside
from neoxargs.registry import REGISTRY, normal


class OtherKey(Record):
    """A key of other programs."""

    programs: tuple[str, ...] = ()
    """The programs that have the key; empty if it means the same in every program that has it."""
    is_forks: bool = False
    """True if a fork of GPT-NeoX has the key. deepy can still launch that fork's training script."""
    counterpart: str | None = None
    """The parameter that corresponds to the key."""
    advice: str = ""
    """What to do instead, for the hint."""


class OtherFile(Record):
    """What the files of another program are recognised by."""

    called: str
    """What a message calls such a file: `a configuration of axolotl`."""
    keys: tuple[tuple[str, ...], ...]
    """A file has at least one key of each group."""
    is_toml: bool = False
    is_certain: bool = False
    """True if the keys are enough even beside those of GPT-NeoX."""
    is_migrated: bool = False
    """True if `deepy migrate` converts the file."""
    is_no_run: bool = False
    """True if the program trains no models."""
    instead: str = ""
    """What to do instead of writing the settings by their names here."""
    absent: Mapping[str, str] = {}
    """What to do without one of its settings, because the program's default is another one."""

    def has_written(self, names: Set[str]) -> bool:
        return all(not names.isdisjoint(group) for group in self.keys)


def files() -> list[OtherFile]:
    """Return the files of other programs that are recognised."""
    return [OtherFile(**program["file"]) for program in _table()["programs"] if "file" in program]


def similar(key: str) -> list[str]:
    """Return top-level keys of several programs that are very similar to a word."""
    return close_matches(key.lower(), _table()["several_programs"], alike=0.85)


def find(key: str) -> OtherKey | None:
    """Look up a top-level key, in any case; None if no known program has it."""
    word = normal(key)
    return _keys().get(word.lower()) or _flags().get(word)


def counterpart(key: str) -> str | None:
    """Return the parameter that corresponds to another program's top-level key."""
    other = find(key)
    return other.counterpart if other else None


def in_sections(key: str) -> str | None:
    """Return the last part of the parameter for another program's key inside a section: `betas` for `adam_beta1`."""
    word = normal(key).lower()
    return _table()["in_sections"].get(word) or (counterpart(word) or "").rpartition(".")[2] or None


def our_choice(word: str) -> str | None:
    """Return our name of another program's choice: `rotary` for `rope`."""
    found: str | None = _table()["choices"].get(word.lower())
    return found


def value_advice(name: str, value: Any) -> str:
    """Return a hint for an invalid value that is common in other programs, else ""."""
    if name == "warmup" and isinstance(value, int | float) and value > 1:
        what = "warmup is a fraction of lr_decay_iters (by default train_iters), not a number of iterations"
        return f"{what}: write the result of {value} / lr_decay_iters"
    if name == "optimizer.params.betas" and isinstance(value, int | float):
        return "write two numbers, for example [0.9, 0.95]"
    if name == "attention_config" and isinstance(value, str):
        return f"write {json.dumps([[[value], 'all']])}"
    if name == "deepspeed" and isinstance(value, str) and value.endswith((".json", ".yml", ".yaml")):
        what = f"if {value} is a DeepSpeed configuration, run `deepy migrate {value}`"
        return f"{what} and pass the resulting YAML together with this file"
    advice: str = _table()["values"].get(name, {}).get(str(value).lower(), "")
    return advice


@cache
def _table() -> dict[str, Any]:
    return table_beside(__file__)


@cache
def _keys() -> dict[str, OtherKey]:
    """Return the keys of all programs; where programs disagree about a key, the first in the file counts."""
    keys = {key: OtherKey(counterpart=name) for key, name in _table()["several_programs"].items()}
    for program in _table()["programs"]:
        counterparts, advice = program.get("counterparts", {}), program.get("advice", {})
        for key in (*counterparts, *advice, *program.get("no_counterpart", ())):
            before = keys.get(key.lower(), OtherKey())
            keys[key.lower()] = OtherKey(
                (*before.programs, program["name"]),
                before.is_forks or program["is_fork"],
                before.counterpart or counterparts.get(key),
                before.advice or advice.get(key, ""),
            )
    return keys


@cache
def _flags() -> dict[str, OtherKey]:
    """Return Megatron-LM's flags; one with the opposite meaning (`!flag`) has advice, but no counterpart."""
    # Reversed, so that the first of several parameters with one flag counts.
    named = [(p.megatron, p.name) for p in reversed(REGISTRY.parameters.values()) if p.megatron and not p.replaced_by]
    opposites = {normal(flag[1:]): name for flag, name in named if flag.startswith("!")}
    same = {normal(flag): name for flag, name in named if not flag.startswith("!")}
    return {flag: OtherKey(advice=f"use {name}: false instead") for flag, name in opposites.items()} | {
        flag: OtherKey(counterpart=name) for flag, name in same.items()
    }
