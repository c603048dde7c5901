"""Charts as SVG: round numbers on the axes, many steps as bands, outliers."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree

import pytest

from neoxargs.base.charts.line_chart import (
    Chart,
    Series,
    centred,
    draw,
    smoothed,
    thin,
)
from tests.support.snapshots import pinned

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("first", [2.5, 3.2, 4.4, 7.0, 10.8])
def test_the_axis_of_a_loss_has_enough_ticks(first: float) -> None:
    svg = drawn(
        Chart("Loss", "", [smoothed("x", "train", [(n, first - 1.9 * n / 90) for n in range(90)])], floats=True)
    )
    assert 4 <= sum(path.get("class") == "grid" for path in svg.iter(f"{SVG}path")) <= 7


def test_many_steps_become_bands_that_hold_them_all() -> None:
    bins = thin([(number, float(number % 10)) for number in range(1000)], max_bins=100)
    assert len(bins) == 100
    assert (bins[0].x, bins[-1].x) == (0, 999)
    assert {(bin.low, bin.mean, bin.high) for bin in bins} == {(0, 4.5, 9)}


def test_a_running_mean_does_not_lag() -> None:
    line = [(number, 3.0 * number) for number in range(600)]
    assert centred(line) == [(x, pytest.approx(y)) for x, y in line]
    assert centred([(0, 1.0), (1, 5.0)]) == [(0, 1.0), (1, 5.0)]


@pytest.mark.parametrize("count", [20, 100, 1000])
def test_a_running_mean_is_smoother_in_short_runs_too(count: int) -> None:
    means = [y for _, y in centred([(number, float((-1) ** number)) for number in range(count)])]
    assert max(map(abs, means[1:-1])) < 0.4


@pytest.mark.parametrize(
    "names",
    [
        ["training", "validation"], ["training", "validation", "test", "a long name"],
        [f"{number} {'a long name of a set ' * 5}{number}" for number in range(8)],
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "title", ["Loss", "Distance from the reference model", "a_task_whose_name_is_longer_than_the_chart"]
)
@pytest.mark.parametrize("width", [400, 1140])
def test_the_texts_above_a_chart_do_not_overlap(names: list[str], title: str, width: int) -> None:
    series = [Series(name, "train", [(n, 1.0) for n in range(99)]) for name in names]
    series[0] = Series(names[0], "train", [(0, 1e7), *series[0].points[1:]])  # has a note
    svg = ElementTree.fromstring(draw(Chart(title, "preferred minus rejected answer", series), width, 300))
    boxes = []
    for text in svg.iter("text"):
        if (kind := text.get("class")) in ("title", "unit", "note", "key"):
            wide = float(text.get("textLength") or (8 if kind == "title" else 6) * len(text.text or ""))
            x = float(text.attrib["x"]) - (wide if text.get("text-anchor") == "end" else 0)
            boxes.append((float(text.attrib["y"]), x, x + wide))
    assert len(boxes) == 3 + len(names) and all(start >= 0 and end <= width for _, start, end in boxes)
    for (y, _, end), (other, start, _) in pairwise(sorted(boxes)):
        assert y != other or end <= start
    top = next(float(part.attrib["y"]) for part in svg.iter("svg") if part.get("class") == "plot")
    assert top > max(y for y, *_ in boxes)
    plot = next(float(part.attrib["height"]) for part in svg.iter("svg") if part.get("class") == "plot")
    assert plot >= 300 - 100 - 34


def drawn(chart: Chart) -> ElementTree.Element:
    return ElementTree.fromstring(draw(chart).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))


def texts(svg: ElementTree.Element, kind: str) -> list[str]:
    return [str(text.text) for text in svg.iter(f"{SVG}text") if text.get("class") == kind]


@pytest.mark.parametrize(
    ("unit", "most", "shown"),
    [
        ("bytes", 3 * 2**30, "GiB"),
        ("bytes", 2**21, "MiB"),
        ("tokens/s", 5e5, "thousand tokens/s"),
        ("tokens/s", 3e6, "million tokens/s"),
        ("", 6e-4, "\N{MULTIPLICATION SIGN} 10⁻⁴"),
        ("nats", 5.0, "nats"),
    ],
)
def test_units_make_the_numbers_short(unit: str, most: float, shown: str) -> None:
    svg = drawn(Chart("x", unit, [Series("x", "train", [(1, 0.0), (100, most)])]))
    assert texts(svg, "unit") == [shown]
    assert max(len(label) for label in texts(svg, "tick") if label != "iteration") <= 5


def test_the_curve_meets_its_axes() -> None:
    """The curve spans the plot from the first iteration to the last, and 0 lies on the axis."""
    svg = drawn(Chart("x", "", [Series("x", "train", [(1, 0.0), (11, 1.0)])]))
    line = next(svg.iter(f"{SVG}polyline")).attrib["points"].split()
    assert line[0] == "64.0,216.0"
    assert line[1].split(",")[0] == "534.0"
    tick = next(text for text in svg.iter(f"{SVG}text") if text.text == "10")
    assert float(tick.attrib["x"]) == pytest.approx(64 + (10 - 1) / 10 * 470)


def test_one_outlier_does_not_flatten_the_rest() -> None:
    points = [(number, 1.0 + number % 2) for number in range(200)]
    calm = texts(drawn(Chart("x", "", [Series("x", "train", points)])), "tick")
    wild = texts(drawn(Chart("x", "", [Series("x", "train", [(0, 1e7), *points[1:]])])), "tick")
    assert calm == wild


def test_an_outlier_beyond_the_axis_is_marked_with_its_value() -> None:
    points = [(number, 1.0 + 0.02 * (number % 40)) for number in range(200)]  # its own peaks are within the axis
    svg = drawn(Chart("x", "nats", [Series("loss", "train", [*points[:50], (50, 1234.5), *points[51:]])]))
    (mark,) = (path for path in svg.iter(f"{SVG}path") if path.get("class") == "beyond")
    assert float(mark.attrib["d"].removeprefix("M").split()[0]) == pytest.approx(64 + 50 / 199 * 470, abs=0.1)
    pinned([title.text for title in mark])
    pinned(texts(svg, "note"))
    assert texts(drawn(Chart("x", "nats", [Series("loss", "train", points)])), "note") == []


def test_a_constant_curve_is_drawn() -> None:
    assert len(texts(drawn(Chart("x", "", [Series("x", "train", [(1, 0.0), (2, 0.0)])])), "tick")) > 2
    assert draw(Chart("x", "", [Series("x", "train", [(5, 7.0)])], floats=True))


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_values_that_are_not_finite_are_left_out(value: float) -> None:
    points = [(1.0, 2.0), (2.0, value), (3.0, 1.0)]
    known = draw(Chart("Loss", "nats", [Series("validation", "validation", [points[0], points[2]], dots=True)]))
    assert draw(Chart("Loss", "nats", [Series("validation", "validation", points, dots=True)])) == known
    drawn(Chart("Loss", "nats", [Series("validation", "validation", [points[1]], dots=True)]))
    marks = draw(Chart("Loss", "nats", [Series("spikes", "mark", points, dots=True, joined=False)]))
    assert "<circle" in marks and "<polyline" not in marks
