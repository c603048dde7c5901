"""Switches in DeepSpeed's JSON that need a value beside them, which DeepSpeed asks for only on the ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from neoxargs.resolve.rules.rule import CHECKS, Finding, Rule, check, refuse

#: The name of a rule -> a switch, and what must have a value where it is on.
NEEDS = {
    "head_pruning_needs_num_heads": (
        "compression_training.head_pruning.shared_parameters.enabled",
        "compression_training.head_pruning.shared_parameters.num_heads",
    ),
    "curriculum_sampling_needs_curriculum_metrics": (
        "data_efficiency.data_sampling.curriculum_learning.enabled",
        "data_efficiency.data_sampling.curriculum_learning.curriculum_metrics",
    ),
    "dynamic_batching_needs_max_tokens": (
        "data_efficiency.data_sampling.dynamic_batching.enabled",
        "data_efficiency.data_sampling.dynamic_batching.max_tokens",
    ),
    "curriculum_learning_needs_schedule_type": ("curriculum_learning.enabled", "curriculum_learning.schedule_type"),
}


#: What every one of these rules protects from.
NEEDED = (
    "DeepSpeed asks for the value beside this switch only on the ranks: all processes are started and find each other, "
    "and then every one of them stops while it reads DeepSpeed's JSON."
)


def needs(name: str, switch: str, other: str) -> None:
    """Register that a switch cannot be on without another parameter."""

    def other_is_given(on: bool, value: Any) -> Finding | None:
        return refuse(f"{switch} needs {other}", f"write {other} as well") if on and not value else None

    example = "\n".join(f"        {line}" for line in _nested(switch))
    other_is_given.__doc__ = f"{NEEDED}\n\n{example}"
    other_is_given.__name__ = name
    CHECKS.append(Rule(other_is_given, (), (switch, other)))


def _nested(switch: str) -> Iterator[str]:
    """`a.b: true` as the lines of a file."""
    *sections, last = switch.split(".")
    yield from ("  " * depth + f"{section}:" for depth, section in enumerate(sections))
    yield "  " * len(sections) + f"{last}: true"


for name, (switch, other) in NEEDS.items():
    needs(name, switch, other)


@check
def partial_optimizer_offload_needs_zero_3(
    zero_optimization__offload_optimizer__ratio: float, zero_optimization__stage: object
) -> Finding | None:
    """Only ZeRO stage 3 can keep a part of the optimizer state on the GPU. Below it DeepSpeed ignores the ratio and
    moves everything to the CPU, and every step takes longer than was planned.

        zero_optimization:
          stage: 2
          offload_optimizer: {device: cpu, ratio: 0.5}
    """
    ratio, stage = zero_optimization__offload_optimizer__ratio, zero_optimization__stage
    if ratio == 1 or stage not in (0, 1, 2):
        return None
    what = f"zero_optimization.offload_optimizer.ratio ({ratio}) below 1 needs zero_optimization.stage 3, not {stage}"
    return refuse(what, "leave ratio out to offload everything")
