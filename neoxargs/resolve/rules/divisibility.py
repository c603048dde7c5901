"""The sentence for a number that should be a multiple of another, and what is near."""

from __future__ import annotations

from math import gcd

from neoxargs.problems import listed
from neoxargs.resolve.rules.rule import Refusal


def multiple(name: str, number: int, of: str, unit: int) -> Refusal:
    """`hidden_size (1000) must be a multiple of num_attention_heads (12)`, with the nearest that are; or None."""
    if number % unit == 0:
        return None
    return f"{name} ({number}) must be a multiple of {of} ({unit})", f"nearest {name}: {nearest(number, unit)}"


def nearest(number: int, unit: int) -> str:
    """The multiples of `unit` on either side of a number that is none: `24 or 32`."""
    below = number // unit * unit
    return f"{below} or {below + unit}" if below else f"{unit}"


def divided(name: str, number: int, of: str, unit: int, *others: int) -> Refusal:
    """As `multiple`, for a size that something is divided into: the hint names first the sizes that fit."""
    refused = multiple(name, number, of, unit)
    if refused is None:
        return None
    sentence, hint = refused
    common = gcd(number, *others)
    sizes = [str(size) for size in range(1, min(common, 1024) + 1) if common % size == 0]
    return sentence, f"{of} can be {listed(sizes)}; {hint}"
