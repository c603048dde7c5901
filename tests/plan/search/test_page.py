"""The axes of the page of a search."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from neoxargs.base.charts.points import HEIGHT
from neoxargs.plan.given.options import PlanOptions
from neoxargs.plan.search.command import SearchOptions, run_search
from neoxargs.plan.search.page import MARKERS
from tests.support.legibility import contrast


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
    shapes, colours = zip(*((each.shape, each.colour) for each in MARKERS.values()), strict=True)
    assert len(stages) == len(set(shapes)) == len(set(colours)) == 4
    for colour in colours:  # WCAG 2 asks for a contrast of 3 in pictures
        for card in re.findall(r"--card: #(\w+)", text):
            assert contrast(rgb(colour.strip("#")), rgb(card)) >= 3, colour


def rgb(digits: str) -> tuple[float, float, float]:
    return int(digits[:2], 16), int(digits[2:4], 16), int(digits[4:], 16)
