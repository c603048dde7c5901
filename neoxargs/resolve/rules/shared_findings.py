"""Findings about a number that must be a multiple of another one; the hint lists numbers that fit."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from neoxargs.base.problems import listed
from neoxargs.base.record import replace
from neoxargs.resolve.rules.rule import Findings, refuse

#: Matrix products and attention kernels are slow, or unavailable, for head sizes that are not multiples of this.
HEAD_SIZE_STEP = 8
#: The largest divisor that a hint proposes: no model has more heads or ranks, and a misspelt number may be enormous.
MOST_PROPOSED = 1024


def multiple_of(name: str, number: int, of: str, unit: int, about: Sequence[str] = ()) -> Findings:
    """Yield `hidden_size (1000) must be a multiple of num_attention_heads (12)` if it is not one.

    about: what the finding is about if one of the two names is not a parameter.
    """
    if number % unit:
        what = f"{name} ({number}) must be a multiple of {of} ({unit})"
        yield refuse(what, f"set {name} to {nearest(number, unit)}", about or [name, of])


def nearest(number: int, unit: int) -> str:
    """Return the multiples of `unit` below and above the number: `24 or 32`."""
    return listed([str(multiple) for multiple in _nearest_multiples(number, unit)])


def _nearest_multiples(number: int, unit: int) -> list[int]:
    """Return the positive multiples of `unit` below and above a number that is not a multiple."""
    below = number // unit * unit
    return [below, below + unit] if below else [unit]


def divisible_by(
    name: str, number: int, divisor_name: str, divisor: int, *others: int, about: Sequence[str] = ()
) -> Findings:
    """Yield the finding of `multiple_of`, with the divisors of `number` and of all `others` in the hint.

    The hint leaves `number` as it is: a different number of heads, for example, would change the size of each head.
    """
    for finding in multiple_of(name, number, divisor_name, divisor, about):
        common = gcd(number, *others)
        sizes = [str(size) for size in range(1, min(common, MOST_PROPOSED) + 1) if common % size == 0]
        yield replace(finding, advice=f"set {divisor_name} to {listed(sizes)}")


def around(number: int, fitting: Sequence[int]) -> list[int]:
    """Return the last of these ascending numbers below `number`, and the first above it."""
    return [*[each for each in fitting if each < number][-1:], *[each for each in fitting if each > number][:1]]


def set_hidden_size(hidden_size: int, heads: int) -> str:
    """Return the hint `set hidden_size to 960 or 1056 (head size 80 or 88)` for 1000 and 12 heads."""
    sizes = _nearest_multiples(hidden_size, HEAD_SIZE_STEP * heads)
    hidden, per_head = (listed([str(size // divisor) for size in sizes]) for divisor in (1, heads))
    return f"set hidden_size to {hidden} (head size {per_head})"


def fitting_heads(hidden_size: int, heads: int) -> str:
    """Return `set num_attention_heads to 16 or 32 (head size 128 or 64), or set hidden_size ...` for 2048 and 17."""
    most = min(hidden_size // HEAD_SIZE_STEP, MOST_PROPOSED)
    fitting = [number for number in range(2, most + 1) if hidden_size % number == 0]
    near = around(heads, fitting)
    other = set_hidden_size(hidden_size, heads)
    if not near:
        return other
    numbers, sizes = listed([str(number) for number in near]), listed([str(hidden_size // number) for number in near])
    return f"set num_attention_heads to {numbers} (head size {sizes}), or {other}"
