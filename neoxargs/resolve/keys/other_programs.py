"""What other programs call our parameters and their values, for people who write those names here.

The names stand in `other_programs.json`, read from the sources that each program names (in 2026) and loaded when
the first unknown key or value is met; what a flag of Megatron-LM means stands in the registry.
"""

from __future__ import annotations

import json
import os
from functools import cache
from typing import Any, NamedTuple

from neoxargs.registry import REGISTRY, normal


class OtherKey(NamedTuple):
    """A key of other programs."""

    programs: tuple[str, ...] = ()
    """Who has it; empty where it means the same wherever it comes from."""
    is_forks: bool = False
    """Has a fork of GPT-NeoX got it, whose training script runs under our launcher?"""
    counterpart: str | None = None
    """The parameter that replaces it."""
    advice: str = ""
    """What to do instead, a clause."""


def find(key: str) -> OtherKey | None:
    """What is known of a top-level key, in capitals or not; None where no program is known to have it."""
    word = normal(key)
    return _keys().get(word.lower()) or _flags().get(word)


def counterpart(key: str) -> str | None:
    """The parameter that another program's top-level key means."""
    other = find(key)
    return other.counterpart if other else None


def in_sections(key: str) -> str | None:
    """The last part of the parameter that another program's key means inside a section: `adam_beta1` is `betas`."""
    word = normal(key).lower()
    return _table()["in_sections"].get(word) or (counterpart(word) or "").rpartition(".")[2] or None


def our_choice(word: str) -> str | None:
    """Our word for another program's choice: `rope` is `rotary`."""
    found: str | None = _table()["choices"].get(word.lower())
    return found


def value_advice(name: str, value: Any) -> str:
    """What to write for a value that does not fit a parameter, where people are known to write it; else empty."""
    if name == "warmup" and isinstance(value, int | float) and value > 1:
        return f"warmup is a fraction of the iterations, not their number: write {value} divided by train_iters"
    if name == "deepspeed" and isinstance(value, str):
        return f"deepspeed is a switch; run `deepy migrate {value}` and pass the resulting YAML together with this file"
    advice: str = _table()["values"].get(name, {}).get(str(value).lower(), "")
    return advice


@cache
def _table() -> dict[str, Any]:
    path = os.path.join(os.path.dirname(__file__), "other_programs.json")
    with open(path, encoding="utf-8") as file:
        table: dict[str, Any] = json.load(file)
    return table


@cache
def _keys() -> dict[str, OtherKey]:
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
    """Megatron-LM's flags, where they say the same and not the opposite."""
    flags = {
        normal(p.megatron): p.name for p in reversed(REGISTRY.parameters.values()) if p.megatron and not p.replaced_by
    }
    return {flag: OtherKey(counterpart=name) for flag, name in flags.items() if not flag.startswith("!")}
