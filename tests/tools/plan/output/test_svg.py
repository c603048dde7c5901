"""The charts of the page."""

from __future__ import annotations

import re

from neoxargs.tools.plan import plan_and_suggest
from neoxargs.tools.plan.options import PlanOptions
from neoxargs.tools.plan.output.svg import memory_chart, stages_chart


def test_each_chart_names_every_part_that_it_shows(middle: str) -> None:
    changes = ["pipe_parallel_size=4", "gradient_accumulation_steps=8", "checkpoint_activations=true"]
    made, _ = plan_and_suggest(PlanOptions([middle], changes, gpus=4, gpu_memory=40))
    for chart in (memory_chart(made), stages_chart(made)):
        shown, named_parts = set(re.findall(r"<title>(\w+):", chart)), re.findall(r"</i>(\w+)</span>", chart)
        assert shown == set(named_parts)
        assert len(named_parts) == len(shown)
    assert "logits" in stages_chart(made)


def test_no_line_runs_through_what_is_written_below_a_bar(middle: str) -> None:
    made, _ = plan_and_suggest(
        PlanOptions([middle], ["pipe_parallel_size=2", "gradient_accumulation_steps=4"], gpus=4, gpu_memory=8)
    )
    drawn = stages_chart(made)
    lines = [(int(top), int(end)) for top, end in re.findall(r'y1="(\d+)" y2="(\d+)"', drawn)]
    captions = [int(y) for y in re.findall(r'y="(\d+)"(?: class="over")?>[^<]* · ', drawn)]
    assert len(lines) == len(captions) == 2
    # letters reach some 10 above where they stand and 3 below
    assert not any(top < y + 3 and y - 10 < end for top, end in lines for y in captions)
