"""What of a rank's values a script written for GPT-NeoX (main branch of May 2026) understands.

Its reader refuses a name or a type it does not know, so `--megatron_config` carries exactly the rest; what only our
own scripts read travels beside it, in `--deepy_config`, which GPT-NeoX's parser passes over.
"""

from __future__ import annotations

from typing import Any

from neoxargs.launch.targets.deepspeed import deepspeed_json
from neoxargs.launch.targets.nesting import nested
from neoxargs.launch.targets.ranks import rank_values
from neoxargs.registry import REGISTRY, Parameter, history
from neoxargs.resolve.config import Config

#: GPT-NeoX's keys of DeepSpeed's JSON; it passes any other on from `deepspeed_extra_args`.
DEEPSPEED = {
    "deepspeed", "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "optimizer",
    "scheduler", "fp32_allreduce", "prescale_gradients", "gradient_predivide_factor", "sparse_gradients", "fp16",
    "bf16", "amp", "gradient_clipping", "zero_optimization", "curriculum_learning", "curriculum_seqlen",
    "steps_per_print", "wall_clock_breakdown", "dump_state", "flops_profiler", "communication_data_type",
    "autotuning", "activation_checkpointing", "sparse_attention", "data_efficiency", "tensorboard", "wandb",
    "csv_monitor", "elasticity", "comms_logger", "compression_training", "checkpoint", "data_types",
    "deepspeed_extra_args",
}  # fmt: skip
EXTRA_ARGS = "deepspeed_extra_args"
#: Its flags of DeepSpeed's launcher.
LAUNCHER_FLAGS = {
    "hostfile", "include", "exclude", "num_nodes", "num_gpus", "master_port", "master_addr", "launcher",
    "force_multi", "autotuning_run", "no_ssh_check", "comment", "account",
}  # fmt: skip
#: It knows these, but not what our rules make of them: a type it refuses (`communication_data_type` is a switch to
#: it), the same setting twice, or two that exclude each other.
NOT_DERIVED = {"communication_data_type", "optimizer.params.weight_decay", "intermediate_size"}
#: Keys that it takes for granted in a section that is there.
EXPECTED = ("fp16.enabled", "amp.enabled", "flops_profiler.enabled", "optimizer.type", "zero_optimization.stage")


def neox_values(config: Config) -> dict[str, Any]:
    """`--megatron_config`: nested, and accepted by GPT-NeoX's own reader."""
    flat = {name: value for name, value in rank_values(config).items() if _is_understood(name, config)}
    for name in EXPECTED:
        if any(other.startswith(name.partition(".")[0] + ".") for other in flat):
            flat.setdefault(name, config.get(name))
    sections = [section for section in sorted(config.sections) if section.partition(".")[0] in DEEPSPEED]
    extra = _extra(config)
    return nested(flat, sections) | ({EXTRA_ARGS: extra} if extra else {})


def extra_values(config: Config) -> dict[str, Any]:
    """`--deepy_config`: what is left, by dotted name."""
    more = {name: value for name, value in rank_values(config).items() if not _is_understood(name, config)}
    return more | ({EXTRA_ARGS: config.engine.deepspeed_extra_args} if _extra(config) else {})


def _extra(config: Config) -> dict[str, Any]:
    """What of DeepSpeed's JSON is none of GPT-NeoX's keys."""
    return {key: value for key, value in deepspeed_json(config).items() if key not in DEEPSPEED}


def is_known(parameter: Parameter) -> bool:
    """Has GPT-NeoX this top-level parameter?"""
    if "DSL" in parameter.origins or "runner" in parameter.to:
        return parameter.name in LAUNCHER_FLAGS
    if "Meg" in parameter.origins or "NeoX" in parameter.origins:
        return not parameter.ours and history.removed(parameter.name) is None
    return parameter.name in DEEPSPEED


def _is_understood(name: str, config: Config) -> bool:
    if name in NOT_DERIVED and not config.is_set(name):
        return False
    section, dot, _ = name.partition(".")
    if dot:
        return section in DEEPSPEED or section == "soft_prompt_tuning"
    return name != EXTRA_ARGS and is_known(REGISTRY.parameters[name])
