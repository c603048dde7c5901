"""The finding for a number that should be a multiple of another, and what is near."""

from __future__ import annotations

from dataclasses import replace
from math import gcd

from neoxargs.problems import listed
from neoxargs.resolve.rules.rule import Finding, refuse


def multiple(name: str, number: int, of: str, unit: int) -> Finding | None:
    """`hidden_size (1000) must be a multiple of num_attention_heads (12)`, with the nearest that are; or None.

    It is about both; where one is no parameter, the rule says with `replace(found, about=...)` what it is about.
    """
    if number % unit == 0:
        return None
    what = f"{name} ({number}) must be a multiple of {of} ({unit})"
    return refuse(what, f"nearest {name}: {nearest(number, unit)}", about=[name, of])


def nearest(number: int, unit: int) -> str:
    """The multiples of `unit` on either side of a number that is none: `24 or 32`."""
    below = number // unit * unit
    return f"{below} or {below + unit}" if below else f"{unit}"


def divided(name: str, number: int, of: str, unit: int, *others: int) -> Finding | None:
    """As `multiple`, for a size that something is divided into: the advice names first the sizes that fit."""
    found = multiple(name, number, of, unit)
    if found is None:
        return None
    common = gcd(number, *others)
    sizes = [str(size) for size in range(1, min(common, 1024) + 1) if common % size == 0]
    return replace(found, advice=f"{of} can be {listed(sizes)}; {found.advice}")
