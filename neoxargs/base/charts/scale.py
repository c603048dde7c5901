"""The numbers on the axes of charts: round ones, in a unit that makes them short."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
#: Steps of the ticks of a logarithmic axis within a power of ten, from few to many, and the fewest ticks.
STEPS, FEWEST = ((1, 2, 5), (1, 2, 3, 5), (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)), 3


def ticks(low: float, high: float, count: int) -> list[float]:
    """Return about `count` round numbers in [low, high], 1, 2, 2.5 or 5 times a power of ten apart."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    # 0.999 and 1e-9 allow for rounding errors in steps such as 0.1.
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def readable_ticks(low: float, high: float) -> list[float]:
    """Return as close to five round numbers in [low, high] as there are, and four to seven of them."""
    choices = [ticks(low, high, count) for count in range(4, 9)]
    return min((marks for marks in choices if len(marks) >= 4), key=lambda marks: abs(len(marks) - 5))


def scaled(unit: str, most: float) -> tuple[float, str]:
    """Return a factor that makes the numbers of an axis short, and the matching unit. most: the largest value."""
    if unit == "bytes":
        name, size = next(((n, s) for n, s in (("GiB", 2.0**30), ("MiB", 2.0**20)) if most >= s), ("KiB", 1024.0))
        return 1 / size, name
    exponent = math.floor(math.log10(most)) if most > 0 else 0
    if exponent >= 4:
        thousands = exponent // 3
        return 10.0 ** (-3 * thousands), f"{('', 'thousand', 'million', 'billion')[min(thousands, 3)]} {unit}"
    if exponent <= -2:
        return 10.0**-exponent, f"\N{MULTIPLICATION SIGN} 10{str(exponent).translate(SUPERSCRIPT)} {unit}".strip()
    return 1.0, unit


def labels(values: Sequence[float]) -> list[str]:
    """Format the numbers of an axis with as many decimals as their distance needs."""
    step = min((b - a for a, b in pairwise(values)), default=1.0)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    decimals += abs(round(step, decimals) - step) > step / 100  # one more for steps such as 2.5
    return [f"{value:,.{decimals}f}" for value in values]


def logarithmic_ticks(first: float, last: float) -> list[float]:
    """Return at least FEWEST numbers within the limits: round ones if there are enough."""
    for steps in STEPS:
        exponents = range(math.floor(math.log10(first)), math.ceil(math.log10(last)) + 1)
        ticks = [step * 10.0**exponent for exponent in exponents for step in steps]
        within = [tick for tick in ticks if first <= tick <= last]
        if len(within) >= FEWEST:
            return within
    return [first * (last / first) ** (part / (FEWEST + 1)) for part in range(1, FEWEST + 1)]
