"""The values that a script written for GPT-NeoX (main branch as of May 2026) accepts, apart from those it rejects.

GPT-NeoX rejects unknown names and types, so `--megatron_config` has only values that it accepts. The values that only
this package's scripts read are in `--deepy_config`, which GPT-NeoX's parser ignores.
"""

from __future__ import annotations

from typing import Any

from neoxargs.config.config import Config
from neoxargs.registry import REGISTRY, Parameter, history
from neoxargs.targets.deepspeed import deepspeed_json
from neoxargs.targets.nesting import nested
from neoxargs.targets.ranks import rank_values

#: Keys of DeepSpeed's JSON that GPT-NeoX has; it takes all others from `deepspeed_extra_args`.
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
#: Flags of DeepSpeed's runner that GPT-NeoX has.
LAUNCHER_FLAGS = {
    "hostfile", "include", "exclude", "num_nodes", "num_gpus", "master_port", "master_addr", "launcher",
    "force_multi", "autotuning_run", "no_ssh_check", "comment", "account",
}  # fmt: skip
#: GPT-NeoX accepts these if they are set, but not as this package derives them: with another type
#: (`communication_data_type` is a bool there), as a duplicate of another setting, or as a contradiction to one.
NOT_DERIVED = {"communication_data_type", "optimizer.params.weight_decay", "intermediate_size", "train_iters"}
#: Keys that GPT-NeoX requires in their section.
REQUIRED = ("fp16.enabled", "amp.enabled", "flops_profiler.enabled", "optimizer.type", "zero_optimization.stage")

#: Values of GPT-NeoX's parameters that only this package has.
OWN_CHOICES = (("checkpoint_activations", "selective"), ("pack_impl", "best_fit"))


def neox_values(config: Config) -> dict[str, Any]:
    """Return the nested values of `--megatron_config`, which GPT-NeoX's parser accepts."""
    flat = {name: value for name, value in rank_values(config).items() if _is_accepted(name, config)}
    for name in REQUIRED:
        if any(other.startswith(name.partition(".")[0] + ".") for other in flat):
            flat.setdefault(name, config.get(name))
    sections = [section for section in sorted(config.sections) if section.partition(".")[0] in DEEPSPEED]
    extra = _extra(config)
    return nested(flat, sections) | ({EXTRA_ARGS: extra} if extra else {})


def extra_values(config: Config) -> dict[str, Any]:
    """Return the values of `--deepy_config`, which GPT-NeoX does not accept, by dotted name."""
    values = {name: value for name, value in rank_values(config).items() if not _is_accepted(name, config)}
    return values | ({EXTRA_ARGS: config.engine.deepspeed_extra_args} if _extra(config) else {})


def _extra(config: Config) -> dict[str, Any]:
    """Return the part of DeepSpeed's JSON whose keys GPT-NeoX does not have."""
    return {key: value for key, value in deepspeed_json(config).items() if key not in DEEPSPEED}


def is_known(parameter: Parameter) -> bool:
    """Return whether GPT-NeoX has this top-level parameter."""
    if "DSL" in parameter.origins or "runner" in parameter.to:
        return parameter.name in LAUNCHER_FLAGS
    if "Meg" in parameter.origins or "NeoX" in parameter.origins:
        return not parameter.ours and history.removed(parameter.name) is None
    return parameter.name in DEEPSPEED


def _is_accepted(name: str, config: Config) -> bool:
    if name in NOT_DERIVED and not config.is_set(name):
        return False
    if any(name == own and config.get(name) == value for own, value in OWN_CHOICES):
        return False
    section, dot, _ = name.partition(".")
    # GPT-NeoX checks the names of sections, but not the keys in them.
    if dot:
        return section in DEEPSPEED or section == "soft_prompt_tuning"
    return name != EXTRA_ARGS and is_known(REGISTRY.parameters[name])
