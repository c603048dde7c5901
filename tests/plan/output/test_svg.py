"""Charts of the HTML page."""

from __future__ import annotations

import re
from colorsys import hls_to_rgb

import pytest

from neoxargs.base.charts.bars import HEIGHT, LEFT, RIGHT
from neoxargs.base.text import format_bytes
from neoxargs.plan.memory.breakdown import PHASES
from neoxargs.plan.output.style import STYLE, stage_colour
from neoxargs.plan.output.svg import MAX_STAGES, memory_chart, ranks_chart, stages_chart, step_chart
from tests.support.legibility import LEAST_CONTRAST, contrast
from tests.support.plans import planned


@pytest.mark.parametrize("gpu_memory", [0.05, 8, 40, 400])
def test_every_part_of_a_bar_is_named_with_its_value_however_narrow(gpu_memory: float, middle: str) -> None:
    changes = ["pipe_parallel_size=4", "gradient_accumulation_steps=8", "checkpoint_activations=true"]
    plan = planned(middle, *changes, gpus=4, gpu_memory=gpu_memory)
    for chart, count in ((memory_chart(plan), len(PHASES)), (stages_chart(plan), 4), (step_chart(plan), 1)):
        bars = chart.split('<div class="bar">')[1:]
        assert len(bars) == count
        for bar in bars:
            drawn = [tuple(part) for part in re.findall(r'fill="(#\w+)"><title>([^<]+): ([^<]+)</title>', bar)]
            named = re.findall(r'background: (#\w+)"></i>([^<]+)</span>', bar)
            assert drawn and named == [(colour, f"{part} {value}") for colour, part, value in drawn]
            # A text in the picture would be stretched with it, and lie on any colour.
            assert "<text" not in bar
    assert "activations" in stages_chart(plan)


def test_the_mark_of_usable_memory_is_explained_and_does_not_cross_captions(middle: str) -> None:
    plan = planned(middle, "pipe_parallel_size=2", "gradient_accumulation_steps=4", gpus=4, gpu_memory=8)
    drawn = stages_chart(plan)
    pictures, captions = re.findall("<svg.*?</svg>", drawn), re.findall(r"<p>.*? · .*?</p>", drawn)
    lines = [(int(top), int(end)) for top, end in re.findall(r'y1="(\d+)" y2="(\d+)"', "".join(pictures))]
    assert len(lines) == len(captions) == len(pictures) == 2 == drawn.count("<line")
    assert all(0 <= top < end <= HEIGHT for top, end in lines)
    assert f"</i>{format_bytes(plan.usable or 0)} usable</span>" in drawn


def test_a_bar_far_beyond_the_limit_is_cut_and_the_limit_stays_visible(middle: str) -> None:
    for gpu_memory, cut in ((40, False), (0.05, True)):
        plan = planned(middle, gpus=1, gpu_memory=gpu_memory)
        drawn = memory_chart(plan)
        assert ("more than 4 times the usable memory" in drawn) == ('class="gap"' in drawn) == cut
        ends = [
            float(x) + float(width) for x, width in re.findall(r'<rect x="([\d.]+)" y="\d+" width="([\d.]+)"', drawn)
        ]
        limit = float(re.findall(r'x1="([\d.]+)"', drawn)[0])
        assert max(ends) < RIGHT + 1 and limit > LEFT + (RIGHT - LEFT) / 5


def test_the_legend_of_the_ranks_says_how_many_stages_it_omits(middle: str) -> None:
    for stages, note in ((MAX_STAGES, ""), (MAX_STAGES + 2, "colours of the first 16 of 18 stages")):
        changes = f"num_layers={stages}", f"pipe_parallel_size={stages}"
        plan = planned(middle, *changes, gpus=stages, gpu_memory=40)
        assert (note in ranks_chart(plan)) and ("colours of" in ranks_chart(plan)) == bool(note)


def test_ranks_are_joined_by_tensor_parallelism_and_labelled_by_their_places(middle: str) -> None:
    changes = ["model_parallel_size=2", "context_parallel_size=2", "gradient_accumulation_steps=2"]
    plan = planned(middle, *changes, gpu_memory=40)
    drawn = ranks_chart(plan)
    assert drawn.count('class="group"') == 4
    assert re.findall("<small>(.*?)</small>", drawn)[:5] == ["d0 c0 t0", "d0 c0 t1", "d0 c1 t0", "d0 c1 t1", "d1 c0 t0"]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_the_labels_of_ranks_have_contrast_on_the_colour_of_every_stage(scheme: int) -> None:
    tint, cell = (re.findall(f"--{name}: ([^;]+);", STYLE)[scheme] for name in ("tint", "cell"))
    saturation, lightness = (float(part.rstrip("%")) / 100 for part in tint.split())
    ink = [int(cell[place : place + 2], 16) for place in (1, 3, 5)]
    for stages in range(1, 65):
        for index in range(stages):
            hue = int(re.findall(r"hsl\((\d+) ", stage_colour(index, stages))[0])
            red, green, blue = (255 * part for part in hls_to_rgb(hue / 360, lightness, saturation))
            assert contrast((ink[0], ink[1], ink[2]), (red, green, blue)) >= LEAST_CONTRAST, hue
