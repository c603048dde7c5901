"""Switches in DeepSpeed's JSON that need a value beside them, which DeepSpeed asks for only on the ranks."""

from __future__ import annotations

from typing import Any

from neoxargs.resolve.rules.rule import CHECKS, Refusal, Rule, check

#: A switch -> what must have a value where it is on.
NEEDS = {
    "compression_training.head_pruning.shared_parameters.enabled": (
        "compression_training.head_pruning.shared_parameters.num_heads"
    ),
    "data_efficiency.data_sampling.curriculum_learning.enabled": (
        "data_efficiency.data_sampling.curriculum_learning.curriculum_metrics"
    ),
    "data_efficiency.data_sampling.dynamic_batching.enabled": (
        "data_efficiency.data_sampling.dynamic_batching.max_tokens"
    ),
    "curriculum_learning.enabled": "curriculum_learning.schedule_type",
}


def needs(switch: str, other: str) -> None:
    """Register that a switch cannot be on without another parameter."""

    def has_its_company(on: bool, value: Any) -> Refusal:
        return (f"{switch} needs {other}", f"write {other} as well") if on and not value else None

    has_its_company.__doc__ = f"{switch} needs {other}."
    has_its_company.__name__ = f"{switch} needs {other}"
    CHECKS.append(Rule(has_its_company, (), (switch, other)))


for name, company in NEEDS.items():
    needs(name, company)


@check
def part_of_the_optimizer_leaves_in_stage_3(
    zero_optimization__offload_optimizer__ratio: float, zero_optimization__stage: object
) -> Refusal:
    """Only stage 3 can keep a part of the optimizer on the GPU."""
    ratio, stage = zero_optimization__offload_optimizer__ratio, zero_optimization__stage
    if ratio == 1 or stage not in (0, 1, 2):
        return None
    name = f"zero_optimization.offload_optimizer.ratio ({ratio})"
    return f"{name} below 1 needs zero_optimization.stage 3, not {stage}", "leave ratio out to offload everything"
