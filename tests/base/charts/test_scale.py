"""Numbers on the axes of charts are round, and there are enough of them."""

from __future__ import annotations

import pytest

from neoxargs.base.charts.scale import labels, logarithmic_ticks, readable_ticks, ticks


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (0, 10, ["0", "2", "4", "6", "8", "10"]),
        (0.1, 0.9, ["0.2", "0.4", "0.6", "0.8"]),
        (2.3, 11.2, ["2.5", "5.0", "7.5", "10.0"]),
        (1, 10_000, ["2,500", "5,000", "7,500", "10,000"]),
        (0, 1.1, ["0.0", "0.5", "1.0"]),
    ],
)
def test_ticks_are_round_numbers(low: float, high: float, shown: list[str]) -> None:
    marks = ticks(low, high, 4 if high != 10 else 6)
    assert labels(marks) == shown


@pytest.mark.parametrize("low", [-3.0, 0.0, 0.3, 2.3, 9.9])
@pytest.mark.parametrize(
    "span", [0.0013, 0.5, 0.9, 1.1, 1.3, 1.6, 2, 2.7, 3, 3.5, 4.1, 5, 5.9, 6.8, 7, 8, 9.4, 11, 1e4]
)
def test_an_axis_has_about_five_ticks(low: float, span: float) -> None:
    marks = readable_ticks(low, low + span)
    assert 4 <= len(marks) <= 7 and low - 1e-6 <= marks[0] and marks[-1] <= low + span + 1e-6
    assert len(set(labels(marks))) == len(marks)


@pytest.mark.parametrize(("first", "last"), [(0.95, 1.05), (0.9, 2.3), (3.1, 4.9), (0.09, 40.0), (5.1, 5.2)])
def test_a_logarithmic_axis_has_three_ticks_or_more_within_its_limits(first: float, last: float) -> None:
    ticks = logarithmic_ticks(first, last)
    assert 3 <= len(ticks) <= 12 and ticks == sorted(set(ticks))
    assert first <= ticks[0] and ticks[-1] <= last
