"""The sentence for a number that should be a multiple of another, and what is near."""

from __future__ import annotations


def multiple(name: str, number: int, of: str, unit: int) -> tuple[str, str] | None:
    """`hidden_size (1000) must be a multiple of num_attention_heads (12)`, with the nearest that are; or None."""
    if number % unit == 0:
        return None
    return f"{name} ({number}) must be a multiple of {of} ({unit})", f"nearest {name}: {nearest(number, unit)}"


def nearest(number: int, unit: int) -> str:
    """The multiples of `unit` on either side of a number that is none: `24 or 32`."""
    below = number // unit * unit
    return f"{below} or {below + unit}" if below else f"{unit}"
