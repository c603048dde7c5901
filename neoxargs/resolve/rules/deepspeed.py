"""Switches of DeepSpeed's JSON that require another key; DeepSpeed checks for it only on the ranks."""

from __future__ import annotations

from typing import Any

from neoxargs.resolve.rules.rule import CHECKS, Finding, Rule, check, refuse

#: Name of a rule -> a switch, and the key that must have a value when the switch is on.
SWITCHES = {
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


PROTECTS_FROM = (
    "DeepSpeed checks for this key only after the launch: all processes start and join the process group, and each of "
    "them then fails when it reads DeepSpeed's JSON."
)


def check_switch(name: str, switch: str, required: str) -> None:
    """Register a check that a switch is on only together with the key that it requires."""

    def required_is_set(on: bool, value: Any) -> Finding | None:
        return refuse(f"{switch} needs {required}", f"set {required}") if on and not value else None

    *sections, last = switch.split(".")
    keys = [*(f"{section}:" for section in sections), f"{last}: true"]
    example = "\n".join(" " * 8 + "  " * depth + key for depth, key in enumerate(keys))
    required_is_set.__doc__ = f"{switch} needs {required}. {PROTECTS_FROM}\n\n{example}"
    required_is_set.__name__ = name
    CHECKS.append(Rule(required_is_set, (), (switch, required)))


for name, (switch, required) in SWITCHES.items():
    check_switch(name, switch, required)


@check
def partial_optimizer_offload_needs_zero_3(
    zero_optimization__offload_optimizer__ratio: float, zero_optimization__stage: object
) -> Finding | None:
    """Only ZeRO stage 3 can keep part of the optimizer state on the GPU. In lower stages, DeepSpeed ignores the ratio
    and moves the whole optimizer state to the CPU, which makes every step slower than planned.

        zero_optimization:
          stage: 2
          offload_optimizer: {device: cpu, ratio: 0.5}
    """
    ratio, stage = zero_optimization__offload_optimizer__ratio, zero_optimization__stage
    if ratio == 1 or stage not in (0, 1, 2):
        return None
    what = f"zero_optimization.offload_optimizer.ratio ({ratio}) is below 1, so "
    what += f"zero_optimization.stage must be 3, not {stage}"
    return refuse(what, "remove ratio to offload the whole optimizer state, or set zero_optimization.stage to 3")
