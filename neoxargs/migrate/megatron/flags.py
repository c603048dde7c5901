"""The meaning of each Megatron-LM flag: a parameter's `megatron=` in the registry, or a row of `SPECIAL`.

flags.json has the flags that set parameters to a constant (`sets_default`: unless another flag sets them) or that are
another name of a parameter. `--openai-gelu` stands there for the approximation of GELU by tanh, which bias_gelu_fusion
has; `--num-key-value-heads` and its like are those of forks, where no other flag turns grouped queries on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from neoxargs.migrate.megatron import computed_flags, experts, lengths
from neoxargs.migrate.megatron.reading import Option, Reading
from neoxargs.registry import REGISTRY
from neoxargs.targets.megatron_tables import NORMS

_NORM_OF = {theirs: ours for ours, theirs in reversed(NORMS.items())}
#: Megatron-DeepSpeed has the lower-case spellings.
NORM_CHOICES = {name.lower(): value for name, value in _NORM_OF.items()} | _NORM_OF


class Row(NamedTuple):
    """How a flag is read. parameter: the one to set by hand if the script has a placeholder for the value."""

    read: Callable[[Reading, Option], None]
    parameter: str = ""
    takes: Literal["value", "nothing", "many"] = "value"


def _sets(values: Mapping[str, Any], overrides: bool) -> Callable[[Reading, Option], None]:
    def read(reading: Reading, option: Option) -> None:
        for name, value in values.items():
            if overrides or name not in reading.settings:
                reading.set(name, value)

    return read


def _renamed(name: str) -> Callable[[Reading, Option], None]:
    return lambda reading, option: reading.set_from(option, name)


_DATA = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
SPECIAL: dict[str, Row] = {
    **{flag: Row(_sets(values, True), takes="nothing") for flag, values in _DATA["sets"].items()},
    **{flag: Row(_sets(values, False), takes="nothing") for flag, values in _DATA["sets_default"].items()},
    **{flag: Row(_renamed(name), name) for flag, name in _DATA["renamed"].items()},
    "pipeline-model-parallel-size": Row(computed_flags.pipeline, "pipe_parallel_size"),
    "cp-comm-type": Row(computed_flags.context_style, "context_parallel_style"),
    "hierarchical-context-parallel-sizes": Row(computed_flags.context_groups, takes="many"),
    "deepspeed-config": Row(computed_flags.deepspeeds_file),
    **{flag: Row(computed_flags.sharding, takes="nothing") for flag in computed_flags.SHARDED},
    computed_flags.STRATEGY: Row(computed_flags.sharding),
    "pretrained-checkpoint": Row(computed_flags.pretrained, "load"),
    "load-tag": Row(computed_flags.load_tag, "iteration"),
    "ffn-hidden-size": Row(computed_flags.ffn_width, "intermediate_size"),
    "group-query-attention": Row(computed_flags.query_groups, takes="nothing"),
    "num-query-groups": Row(computed_flags.query_groups, "num_kv_heads"),
    "position-embedding-type": Row(computed_flags.positions),
    "use-rope-scaling": Row(computed_flags.llama3, takes="nothing"),
    "rope-scaling-factor": Row(computed_flags.factor("--use-rope-scaling")),
    "rotary-scaling-factor": Row(computed_flags.factor(computed_flags.OF_YARN)),
    "mscale": Row(computed_flags.yarn_multiplier, "rope_scaling.mscale"),
    "mscale-all-dim": Row(computed_flags.yarn_multiplier, "rope_scaling.mscale_all_dim"),
    "rotary-seq-len-interpolation-factor": Row(computed_flags.interpolation),
    "normalization": Row(computed_flags.choice("norm", NORM_CHOICES)),
    "num-experts": Row(experts.experts, "moe_num_experts"),
    "mlp-type": Row(experts.mlp_type),
    "moe-router-load-balancing-type": Row(experts.router),
    "moe-router-pre-softmax": Row(experts.pre_softmax, takes="nothing"),
    "moe-ffn-hidden-size": Row(experts.expert_width, "intermediate_size"),
    "moe-shared-expert-intermediate-size": Row(experts.shared_experts),
    "moe-expert-capacity-factor": Row(experts.capacity),
    "moe-layer-freq": Row(computed_flags.expert_layers, "moe_expert_interval"),
    "moe-aux-loss-coeff": Row(computed_flags.balance, "moe_aux_loss_coeff"),
    "norm-epsilon": Row(computed_flags.epsilon),
    "swiglu": Row(computed_flags.swiglu, takes="nothing"),
    "glu-activation": Row(computed_flags.glu_activation),
    "attention-head-type": Row(computed_flags.key_value_heads),
    "attention-backend": Row(computed_flags.attention_backend),
    "window-size": Row(computed_flags.window),
    "window-attn-skip-freq": Row(computed_flags.window_layers),
    "no-bias-gelu-fusion": Row(computed_flags.no_gelu_fusion, takes="nothing"),
    "fp16": Row(computed_flags.fp16, takes="nothing"),
    "initial-loss-scale": Row(computed_flags.initial_scale),
    **dict.fromkeys(("loss-scale", "loss-scale-window", "hysteresis", "min-loss-scale"), Row(computed_flags.scaling)),
    "optimizer": Row(computed_flags.optimizer),
    "optimizer-cpu-offload": Row(computed_flags.cpu_offload, takes="nothing"),
    "use-torch-optimizer-for-cpu-offload": Row(computed_flags.cpu_offload, takes="nothing"),
    "sgd-momentum": Row(computed_flags.momentum("sgd")),
    "muon-momentum": Row(computed_flags.momentum("muon")),
    "muon-nesterov": Row(computed_flags.muon("nesterov", True), takes="nothing"),
    "muon-no-split-qkv": Row(computed_flags.muon("split_qkv", False), takes="nothing"),
    "muon-num-ns-steps": Row(computed_flags.muon("ns_steps")),
    "muon-extra-scale-factor": Row(computed_flags.muon("extra_scale_factor")),
    "muon-scale-mode": Row(computed_flags.muon_scale),
    **dict.fromkeys(("adam-beta1", "adam-beta2"), Row(computed_flags.betas("adam", (0.9, 0.999)))),
    **dict.fromkeys(("lion-beta1", "lion-beta2"), Row(computed_flags.betas("lion", (0.95, 0.98)))),
    "recompute-granularity": Row(computed_flags.recompute),
    "recompute-activations": Row(computed_flags.selective_recompute, takes="nothing"),
    "recompute-method": Row(computed_flags.method),
    "data-path": Row(computed_flags.data, "data_path", takes="many"),
    "train-data-path": Row(computed_flags.paths("train"), "train_data_paths", takes="many"),
    "valid-data-path": Row(computed_flags.paths("valid"), "valid_data_paths", takes="many"),
    "multiple-validation-sets": Row(computed_flags.named_sets, "validation", takes="nothing"),
    "validation-set-names": Row(computed_flags.set_names, takes="many"),
    "test-data-path": Row(computed_flags.paths("test"), "test_data_paths", takes="many"),
    "dataloader-type": Row(computed_flags.sample_order),
    "tokenizer-type": Row(computed_flags.tokenizer, "tokenizer_type"),
    "tokenizer-model": Row(computed_flags.tokenizer_file, "vocab_file"),
    "tokenizer-name-or-path": Row(computed_flags.tokenizer_file, "vocab_file"),
    "vocab-file": Row(computed_flags.tokenizer_file, "vocab_file"),
    "vocab-size": Row(computed_flags.vocabulary),
    "eval-iters": Row(computed_flags.evaluation, "eval_iters"),
    "save-interval": Row(computed_flags.save_interval, "checkpoint_factor"),
    "exit-interval": Row(computed_flags.exit_interval, "exit_interval"),
    "rampup-batch-size": Row(lengths.ramp, "rampup_batch_size", takes="many"),
    "step-batch-size-schedule": Row(lengths.batch_phases, "batch_size_schedule", takes="many"),
    "train-samples": Row(lengths.samples("train_samples", "train_iters"), "train_iters"),
    "train-tokens": Row(lengths.train_tokens, "train_iters"),
    "lr-decay-samples": Row(lengths.samples("lr_decay_samples", "lr_decay_iters"), "lr_decay_iters"),
    "lr-decay-tokens": Row(lengths.samples("lr_decay_samples", "lr_decay_iters"), "lr_decay_iters"),
    "lr-wsd-decay-samples": Row(lengths.length("lr_wsd_decay_iters"), "lr_wsd_decay_iters"),
    **dict.fromkeys(("lr-warmup-iters", "lr-warmup-samples", "lr-warmup-tokens"), Row(lengths.warmup, "warmup")),
    "wandb-project": Row(computed_flags.tracked("wandb_project"), "wandb_project"),
    "wandb-exp-name": Row(computed_flags.tracked("wandb_run_name"), "wandb_run_name"),
    "wandb-entity": Row(computed_flags.tracked("wandb_team"), "wandb_team"),
}


@cache
def by_flag() -> dict[str, list[str]]:
    """Return flag -> the names of its parameters; a leading `!` marks a flag that sets them to false."""
    names: dict[str, list[str]] = {}
    for parameter in REGISTRY.parameters.values():
        if parameter.megatron and not parameter.replaced_by and parameter.effect != "none":
            names.setdefault(parameter.megatron, []).append(parameter.name)
    return names


def parameters_of(flag: str) -> list[str]:
    """Return the names of the parameters that a flag sets. Flags with the name of a parameter are accepted too."""
    if flag in SPECIAL:
        return list(filter(None, [SPECIAL[flag].parameter]))
    parameter = REGISTRY.find(flag)
    has_effect = parameter is not None and "." not in parameter.name and parameter.effect != "none"
    return by_flag().get(flag) or ([parameter.name] if parameter and has_effect else [])


def is_switch(flag: str) -> bool:
    """Return whether a flag takes no value."""
    if flag in SPECIAL:
        return SPECIAL[flag].takes == "nothing"
    types = [REGISTRY.parameters[name].type for name in parameters_of(flag)]
    return f"!{flag}" in by_flag() or any(bool in (kind, *get_args(kind)) for kind in types)


def takes_many(flag: str) -> bool:
    """Return whether a flag takes any number of values."""
    return flag in SPECIAL and SPECIAL[flag].takes == "many"


def is_read(flag: str) -> bool:
    """Return whether a flag has a counterpart."""
    return flag in SPECIAL or f"!{flag}" in by_flag() or bool(parameters_of(flag))


def read_flag(reading: Reading, option: Option) -> None:
    """Set the parameters of a flag for which `is_read` is true."""
    if option.name in SPECIAL:
        SPECIAL[option.name].read(reading, option)
    elif turned_off := by_flag().get(f"!{option.name}"):
        for name in turned_off:
            reading.set(name, False)
    else:
        for name in parameters_of(option.name):
            reading.set_from(option, name)
