"""Activations of micro batches in flight."""

from __future__ import annotations

from neoxargs.tools.plan import plan_and_suggest
from neoxargs.tools.plan.options import PlanOptions


def test_earlier_stages_have_more_micro_batches_in_flight(middle: str) -> None:
    changes = ["pipe_parallel_size=4", "gradient_accumulation_steps=8", "checkpoint_activations=true"]
    plan, _ = plan_and_suggest(PlanOptions([middle], changes, gpus=4))
    stored = [rank.phases["forward"]["activations"] for rank in plan.stage_memory]
    assert stored == sorted(stored, reverse=True) and len(set(stored)) == 4
