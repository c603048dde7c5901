"""Switches of DeepSpeed's JSON that require another key; DeepSpeed checks for it only on the ranks."""

from __future__ import annotations

from typing import Any

from neoxargs.resolve.rules.rule import CHECKS, Findings, Rule, check, refuse

#: Name of a rule -> a section, and the key of it that must have a value when the section is enabled.
SWITCHES = {
    "head_pruning_needs_num_heads": ("compression_training.head_pruning.shared_parameters", "num_heads"),
    "curriculum_sampling_needs_curriculum_metrics": (
        "data_efficiency.data_sampling.curriculum_learning", "curriculum_metrics"
    ),
    "dynamic_batching_needs_max_tokens": ("data_efficiency.data_sampling.dynamic_batching", "max_tokens"),
    "curriculum_learning_needs_schedule_type": ("curriculum_learning", "schedule_type"),
}  # fmt: skip


PROTECTS_FROM = (
    "DeepSpeed checks for this key only after the launch: all processes start and join the process group, and each of "
    "them then fails when it reads DeepSpeed's JSON."
)


def check_switch(name: str, section: str, key: str) -> None:
    """Register a check that a section is enabled only together with the key that it requires."""
    switch, required = f"{section}.enabled", f"{section}.{key}"

    def required_is_set(on: bool, value: Any) -> Findings:
        if on and not value:
            yield refuse(f"{switch} needs {required}", f"set {required}")

    lines = [*(f"{part}:" for part in section.split(".")), "enabled: true"]
    example = "\n".join(" " * 8 + "  " * depth + line for depth, line in enumerate(lines))
    required_is_set.__doc__ = f"{switch} needs {required}. {PROTECTS_FROM}\n\n{example}"
    required_is_set.__name__ = name
    CHECKS.append(Rule(required_is_set, (), (switch, required)))


for name, (section, key) in SWITCHES.items():
    check_switch(name, section, key)


@check
def partial_optimizer_offload_needs_zero_3(
    zero_optimization__offload_optimizer__ratio: float, zero_optimization__stage: object
) -> Findings:
    """Only ZeRO stage 3 can keep part of the optimizer state on the GPU. In lower stages, DeepSpeed ignores the ratio
    and moves the whole optimizer state to the CPU, which makes every step slower than planned.

        zero_optimization:
          stage: 2
          offload_optimizer: {device: cpu, ratio: 0.5}
    """
    ratio, stage = zero_optimization__offload_optimizer__ratio, zero_optimization__stage
    if ratio != 1 and stage in (0, 1, 2):
        what = f"zero_optimization.offload_optimizer.ratio ({ratio}) is below 1, so "
        what += f"zero_optimization.stage must be 3, not {stage}"
        yield refuse(what, "remove ratio to offload the whole optimizer state, or set zero_optimization.stage to 3")
