"""Activations of the micro batches in flight."""

from __future__ import annotations

from neoxargs.tools.plan import plan_and_suggest
from neoxargs.tools.plan.options import PlanOptions


def test_stages_nearer_to_the_start_have_more_micro_batches_in_flight(middle: str) -> None:
    changes = ["pipe_parallel_size=4", "gradient_accumulation_steps=8", "checkpoint_activations=true"]
    made, _ = plan_and_suggest(PlanOptions([middle], changes, gpus=4))
    kept = [account.phases["forward"]["activations"] for account in made.stage_memory]
    assert kept == sorted(kept, reverse=True) and len(set(kept)) == 4
