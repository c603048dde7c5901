"""The axes of the page of a search."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from neoxargs.plan.given.options import PlanOptions
from neoxargs.plan.search.command import SearchOptions, run_search
from neoxargs.plan.search.page import HEIGHT, ZERO, _ticks
from tests.support.legibility import contrast


@pytest.mark.parametrize(("first", "last"), [(0.95, 1.05), (0.9, 2.3), (3.1, 4.9), (0.09, 40.0), (5.1, 5.2)])
def test_an_axis_has_three_ticks_or_more_within_its_limits(first: float, last: float) -> None:
    ticks = _ticks(first, last)
    assert 3 <= len(ticks) <= 12 and ticks == sorted(set(ticks))
    assert first <= ticks[0] and ticks[-1] <= last


@pytest.mark.parametrize("memory", [1000.0, 24.0])
def test_points_fill_the_height_of_the_chart(memory: float, middle: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    run_search(PlanOptions([middle], gpus=2, device="H100", gpu_memory=memory), SearchOptions(page=str(page)))
    heights = [float(y) for y in re.findall(r'<use [^>]*%" y="([0-9.]+)"', page.read_text())]
    assert heights and min(heights) < HEIGHT / 4


def test_points_show_the_stage_of_zero_by_shape_and_colour(middle: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    run_search(PlanOptions([middle], gpus=4, device="H100"), SearchOptions(page=str(page)))
    text = page.read_text()
    chart, legend = (
        re.findall(r'<svg class="chart".*?</svg>', text)[0],
        re.findall('<div class="legend">.*?</div>', text)[0],
    )
    points = re.findall(r'<use class="\w+ (\w+)" href="#(\w+)"[^>]*><title>[^<]*?ZeRO-(\d)', chart)
    assert len(points) > 10 and all(kind == shape == f"zero{stage}" for kind, shape, stage in points)
    stages = sorted({stage for *_, stage in points})
    assert re.findall(r'href="#zero(\d)"[^>]*/></svg>ZeRO-(\d)<', legend) == [(stage, stage) for stage in stages]
    shapes, colours = zip(*ZERO, strict=True)
    assert len(stages) == len(set(shapes)) == len(set(colours)) == 4
    for colour in colours:  # WCAG 2 asks for a contrast of 3 in pictures
        for card in re.findall(r"--card: #(\w+)", text):
            assert contrast(rgb(colour.strip("#")), rgb(card)) >= 3, colour


def rgb(digits: str) -> tuple[float, float, float]:
    return int(digits[:2], 16), int(digits[2:4], 16), int(digits[4:], 16)
