"""The axes of the page of a search."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from neoxargs.tools.plan.options import PlanOptions
from neoxargs.tools.plan.search.command import SearchOptions, run_search
from neoxargs.tools.plan.search.page import HEIGHT, _ticks


@pytest.mark.parametrize(("first", "last"), [(0.95, 1.05), (0.9, 2.3), (3.1, 4.9), (0.09, 40.0), (5.1, 5.2)])
def test_an_axis_has_three_ticks_or_more_within_its_limits(first: float, last: float) -> None:
    ticks = _ticks(first, last)
    assert 3 <= len(ticks) <= 12 and ticks == sorted(set(ticks))
    assert first <= ticks[0] and ticks[-1] <= last


@pytest.mark.parametrize("memory", [1000.0, 24.0])
def test_points_fill_the_height_of_the_chart(memory: float, middle: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    run_search(PlanOptions([middle], gpus=2, device="H100", gpu_memory=memory), SearchOptions(page=str(page)))
    heights = [float(y) for y in re.findall(r'cy="([0-9.]+)"', page.read_text())]
    assert heights and min(heights) < HEIGHT / 4
