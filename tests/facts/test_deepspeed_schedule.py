"""The learning rates of DeepSpeed's schedules, compared with those that DeepSpeed sets."""

from __future__ import annotations

from typing import Any

import pytest

from neoxargs.facts.deepspeed_schedule import curve
from neoxargs.resolve import File, complete, draft
from tests.support import smallest

#: Type and parameters of schedules, each with every branch of its formula within 40 iterations.
SCHEDULES: list[tuple[str, dict[str, Any]]] = [
    ("WarmupLR", {"warmup_num_steps": 10}),
    ("WarmupLR", {"warmup_num_steps": 10, "warmup_type": "linear", "warmup_min_lr": 1e-5, "warmup_max_lr": 0.01}),
    ("WarmupLR", {"warmup_num_steps": 1}),
    ("WarmupDecayLR", {"warmup_num_steps": 7, "total_num_steps": 30}),
    ("WarmupDecayLR", {"warmup_num_steps": 7, "total_num_steps": 7, "warmup_min_lr": 1e-5, "warmup_type": "linear"}),
    ("WarmupCosineLR", {"warmup_num_steps": 7, "total_num_steps": 30}),
    ("WarmupCosineLR", {"warmup_num_steps": 9, "total_num_steps": 20, "warmup_min_ratio": 0.1, "cos_min_ratio": 0.2}),
    ("WarmupCosineLR", {"warmup_num_steps": 9, "total_num_steps": 9, "warmup_type": "linear"}),
    ("OneCycle", {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-2, "cycle_first_step_size": 10}),
    ("OneCycle", {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-2, "cycle_first_step_size": 9, "cycle_second_step_size": 14,
                  "cycle_first_stair_count": 3, "cycle_second_stair_count": 5, "decay_step_size": 4,
                  "decay_lr_rate": 0.5}),
    ("LRRangeTest", {"lr_range_test_step_size": 5, "lr_range_test_step_rate": 2.0}),
    ("LRRangeTest", {"lr_range_test_step_size": 5, "lr_range_test_staircase": True, "lr_range_test_min_lr": 0.1}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "params"), SCHEDULES)
def test_the_rates_are_those_of_deepspeed(name: str, params: dict[str, Any]) -> None:
    import torch
    from deepspeed.runtime import lr_schedules

    text = (
        smallest.YAML
        + f"optimizer: {{type: Adam, params: {{lr: 0.003}}}}\nscheduler: {{type: {name}, params: {params}}}\n"
    )
    ours = curve(complete(draft([File("my.yml", text)]), 1))
    optimizer = torch.optim.Adam([torch.zeros(1)], lr=0.003)
    made = {"warmup_max_lr": 0.003, **params} if name == "WarmupDecayLR" else params
    theirs = getattr(lr_schedules, name)(optimizer, **made)
    for iteration in range(40):
        assert ours(iteration) == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-12), iteration
        theirs.step()
