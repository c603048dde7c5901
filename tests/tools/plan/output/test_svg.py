"""Charts of the HTML page."""

from __future__ import annotations

import re

from neoxargs.tools.plan import plan_and_suggest
from neoxargs.tools.plan.options import PlanOptions
from neoxargs.tools.plan.output.svg import LEFT, MAX_STAGES, RIGHT, memory_chart, ranks_chart, stages_chart


def test_legends_list_the_parts_of_the_chart(middle: str) -> None:
    changes = ["pipe_parallel_size=4", "gradient_accumulation_steps=8", "checkpoint_activations=true"]
    plan, _ = plan_and_suggest(PlanOptions([middle], changes, gpus=4, gpu_memory=40))
    for chart in (memory_chart(plan), stages_chart(plan)):
        drawn, named_parts = set(re.findall(r"<title>(\w+):", chart)), re.findall(r"</i>(\w+)</span>", chart)
        assert drawn == set(named_parts)
        assert len(named_parts) == len(drawn)
    assert "activations" in stages_chart(plan)


def test_the_line_of_usable_memory_does_not_cross_captions(middle: str) -> None:
    plan, _ = plan_and_suggest(
        PlanOptions([middle], ["pipe_parallel_size=2", "gradient_accumulation_steps=4"], gpus=4, gpu_memory=8)
    )
    drawn = stages_chart(plan)
    lines = [(int(top), int(end)) for top, end in re.findall(r'y1="(\d+)" y2="(\d+)"', drawn)]
    captions = [int(y) for y in re.findall(r'y="(\d+)"(?: class="over")?>[^<]* · ', drawn)]
    assert len(lines) == len(captions) == 2
    # text extends about 10 units above its baseline and 3 below
    assert not any(top < y + 3 and y - 10 < end for top, end in lines for y in captions)


def test_a_bar_far_beyond_the_limit_is_cut_and_the_limit_stays_visible(middle: str) -> None:
    for gpu_memory, cut in ((40, False), (0.05, True)):
        plan, _ = plan_and_suggest(PlanOptions([middle], [], gpus=1, gpu_memory=gpu_memory))
        drawn = memory_chart(plan)
        assert ("more than 4 times the usable memory" in drawn) == ('class="gap"' in drawn) == cut
        ends = [
            float(x) + float(width) for x, width in re.findall(r'<rect x="([\d.]+)" y="\d+" width="([\d.]+)"', drawn)
        ]
        limit = float(re.findall(r'x1="([\d.]+)"', drawn)[0])
        assert max(ends) < RIGHT + 1 and limit > LEFT + (RIGHT - LEFT) / 5


def test_the_legend_of_the_ranks_says_how_many_stages_it_omits(middle: str) -> None:
    for stages, note in ((MAX_STAGES, ""), (MAX_STAGES + 2, "colours of the first 16 of 18 stages")):
        changes = [f"num_layers={stages}", f"pipe_parallel_size={stages}"]
        plan, _ = plan_and_suggest(PlanOptions([middle], changes, gpus=stages, gpu_memory=40))
        assert (note in ranks_chart(plan)) and ("colours of" in ranks_chart(plan)) == bool(note)
