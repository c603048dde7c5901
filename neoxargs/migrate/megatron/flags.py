"""The meaning of each Megatron-LM flag: a parameter's `megatron=` in the registry, or a row of `SPECIAL`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, get_args

from neoxargs.migrate.megatron import computed_flags, experts, lengths
from neoxargs.migrate.megatron.reading import Option, Reading
from neoxargs.registry import REGISTRY
from neoxargs.resolve.yaml.write import Setting
from neoxargs.targets.megatron_tables import NORMS, POSITIONS

#: `--position-embedding-type` of BigScience's Megatron-DeepSpeed.
BIGSCIENCE_POSITIONS = {"absolute": "learned", "rotary": "rotary", "alibi": "alibi"}
SHARDING = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}


def _sets(name: str, value: Any) -> Callable[[Reading, Option], None]:
    return lambda reading, option: reading.set(name, value)


def _sets_default(name: str, value: Any) -> Callable[[Reading, Option], None]:
    def read(reading: Reading, option: Option) -> None:
        reading.settings.setdefault(name, Setting(value))

    return read


def _choice(name: str, values: dict[str, Any]) -> Callable[[Reading, Option], None]:
    """Set a parameter whose choices have other names: Megatron-LM's choice -> value."""

    def read(reading: Reading, option: Option) -> None:
        if option.text in values:
            reading.set(name, values[option.text])
        else:
            reading.leave_out(option)

    return read


def _in_any_case(values: dict[str, Any]) -> dict[str, Any]:
    """Add the lower-case spelling of each choice, which Megatron-DeepSpeed has."""
    return {name.lower(): value for name, value in values.items()} | values


def _renamed(name: str) -> Callable[[Reading, Option], None]:
    return lambda reading, option: reading.set_from(option, name)


SPECIAL: dict[str, Callable[[Reading, Option], None]] = {
    "pipeline-model-parallel-size": computed_flags.pipeline,
    "no-pipeline-parallel": _sets("pipe_parallel_size", 0),
    "deepspeed-config": computed_flags.deepspeeds_file,
    "context-parallel-size": computed_flags.one_only,
    "ds-sequence-parallel-size": computed_flags.one_only,
    "calculate-per-token-loss": _sets("loss_average", "tokens"),
    "use-distributed-optimizer": _sets("zero_optimization.stage", 1),
    "use-megatron-fsdp": _sets_default("zero_optimization.stage", 3),
    "data-parallel-sharding-strategy": _choice("zero_optimization.stage", SHARDING),
    "zero-stage": _renamed("zero_optimization.stage"),
    "ffn-hidden-size": computed_flags.ffn_width,
    "group-query-attention": computed_flags.query_groups,
    "num-query-groups": computed_flags.query_groups,
    # the same in forks, where no other flag turns it on
    "num-key-value-heads": _renamed("num_kv_heads"),
    "num-attention-heads-kv": _renamed("num_kv_heads"),
    "n-head-kv": _renamed("num_kv_heads"),
    "position-embedding-type": computed_flags.positions(
        _choice("pos_emb", {theirs: ours for ours, theirs in POSITIONS.items()} | BIGSCIENCE_POSITIONS)
    ),
    "use-rope-scaling": computed_flags.llama3,
    "rope-scaling-factor": computed_flags.llama3_factor,
    "rotary-scaling-factor": computed_flags.yarn_factor,
    "rotary-seq-len-interpolation-factor": computed_flags.interpolation,
    "use-rotary-position-embeddings": _sets("pos_emb", "rotary"),
    "no-position-embedding": _sets_default("pos_emb", "none"),
    "normalization": _choice("norm", _in_any_case({theirs: ours for ours, theirs in reversed(NORMS.items())})),
    "use-rms-norm": _sets("norm", "rmsnorm"),
    "num-experts": experts.experts,
    "mlp-type": experts.mlp_type,
    "moe-router-load-balancing-type": experts.router,
    "moe-router-pre-softmax": experts.pre_softmax,
    "moe-ffn-hidden-size": experts.expert_width,
    "moe-shared-expert-intermediate-size": experts.shared_experts,
    "moe-expert-capacity-factor": experts.capacity,
    "disable-moe-token-dropping": _sets("moe_token_dropping", False),
    "moe-layer-freq": computed_flags.expert_layers,
    "moe-aux-loss-coeff": computed_flags.balance,
    "norm-epsilon": computed_flags.epsilon,
    "swiglu": computed_flags.swiglu,
    "glu-activation": computed_flags.glu_activation,
    "attention-head-type": computed_flags.key_value_heads,
    "no-query-key-layer-scaling": _sets("apply_query_key_layer_scaling", False),
    "disable-bias-linear": computed_flags.no_bias,
    "init-method-xavier-uniform": computed_flags.xavier,
    "window-size": computed_flags.window,
    "window-attn-skip-freq": computed_flags.window_layers,
    "openai-gelu": _sets("bias_gelu_fusion", True),  # which stands for the approximation of GELU by tanh
    "no-bias-gelu-fusion": computed_flags.no_gelu_fusion,
    "no-masked-softmax-fusion": computed_flags.no_softmax_fusion,
    "no-bias-swiglu-fusion": _sets("bias_gelu_fusion", False),
    "use-flash-attn": _sets("attention_config", [[["flash"], "all"]]),
    "fp16": computed_flags.fp16,
    "bf16": _sets("precision", "bfloat16"),
    "initial-loss-scale": computed_flags.initial_scale,
    "loss-scale": computed_flags.scaling("loss_scale"),
    "loss-scale-window": computed_flags.scaling("loss_scale_window"),
    "hysteresis": computed_flags.scaling("hysteresis"),
    "min-loss-scale": computed_flags.scaling("min_loss_scale"),
    "optimizer": computed_flags.optimizer,
    "optimizer-cpu-offload": computed_flags.cpu_offload,
    "use-torch-optimizer-for-cpu-offload": computed_flags.cpu_offload,
    "sgd-momentum": computed_flags.momentum("sgd"),
    "muon-momentum": computed_flags.momentum("muon"),
    "adam-beta1": computed_flags.betas("adam", (0.9, 0.999)),
    "adam-beta2": computed_flags.betas("adam", (0.9, 0.999)),
    "lion-beta1": computed_flags.betas("lion", (0.95, 0.98)),
    "lion-beta2": computed_flags.betas("lion", (0.95, 0.98)),
    "adam-eps": _renamed("optimizer.params.eps"),
    "clip-grad": _renamed("gradient_clipping"),
    "recompute-granularity": computed_flags.recompute,
    "recompute-activations": computed_flags.selective_recompute,
    "recompute-method": computed_flags.method,
    "recompute-num-layers": _renamed("checkpoint_num_layers"),
    "checkpoint-activations": _sets("checkpoint_activations", True),
    "distribute-saved-activations": _sets("partition_activations", True),
    "data-path": computed_flags.data,
    "train-data-path": computed_flags.paths("train"),
    "valid-data-path": computed_flags.paths("valid"),
    "test-data-path": computed_flags.paths("test"),
    "tokenizer-type": computed_flags.tokenizer,
    "tokenizer-model": computed_flags.tokenizer_file,
    "tokenizer-name-or-path": computed_flags.tokenizer_file,
    "vocab-file": computed_flags.tokenizer_file,
    "vocab-size": computed_flags.vocabulary,
    "eval-iters": computed_flags.evaluation,
    "save-interval": computed_flags.save_interval,
    "exit-interval": computed_flags.exit_interval,
    "train-samples": lengths.length("train_iters"),
    "train-tokens": lengths.train_tokens,
    "lr-decay-samples": lengths.length("lr_decay_iters"),
    "lr-decay-tokens": lengths.length("lr_decay_iters"),
    "lr-decay-style": computed_flags.decay_style,
    "lr-warmup-iters": lengths.warmup,
    "lr-warmup-samples": lengths.warmup,
    "lr-warmup-tokens": lengths.warmup,
    "log-num-zeros-in-grad": _sets("log_grad_pct_zeros", True),
    "wandb-project": computed_flags.tracked("wandb_project"),
    "wandb-exp-name": computed_flags.tracked("wandb_run_name"),
    "wandb-entity": computed_flags.tracked("wandb_team"),
}

#: The flags of SPECIAL that take no value.
SWITCHES = frozenset({
    "no-pipeline-parallel", "use-distributed-optimizer", "use-megatron-fsdp", "group-query-attention",
    "use-rotary-position-embeddings", "no-position-embedding", "swiglu", "disable-bias-linear",
    "init-method-xavier-uniform", "no-masked-softmax-fusion", "no-bias-swiglu-fusion", "use-flash-attn", "fp16",
    "bf16", "use-rope-scaling", "optimizer-cpu-offload", "use-torch-optimizer-for-cpu-offload",
    "checkpoint-activations", "distribute-saved-activations", "log-num-zeros-in-grad", "use-rms-norm",
    "moe-router-pre-softmax", "disable-moe-token-dropping", "no-query-key-layer-scaling", "calculate-per-token-loss",
    "recompute-activations", "openai-gelu", "no-bias-gelu-fusion",
})  # fmt: skip
#: The flags of SPECIAL that take any number of values.
TAKES_MANY = {"data-path", "train-data-path", "valid-data-path", "test-data-path"}
#: Flag of SPECIAL -> the parameter to set by hand if the script has a placeholder for its value.
_PARAMETERS = {
    "data-path": "data_path", "train-data-path": "train_data_paths", "valid-data-path": "valid_data_paths",
    "test-data-path": "test_data_paths", "tokenizer-model": "vocab_file",
    "tokenizer-name-or-path": "vocab_file", "vocab-file": "vocab_file", "num-query-groups": "num_kv_heads",
    "num-key-value-heads": "num_kv_heads", "num-attention-heads-kv": "num_kv_heads", "n-head-kv": "num_kv_heads",
    "tokenizer-type": "tokenizer_type",
    "pipeline-model-parallel-size": "pipe_parallel_size", "ffn-hidden-size": "intermediate_size",
    "train-samples": "train_iters", "train-tokens": "train_iters", "lr-decay-samples": "lr_decay_iters",
    "lr-decay-tokens": "lr_decay_iters", "lr-warmup-tokens": "warmup", "num-experts": "moe_num_experts",
    "moe-ffn-hidden-size": "intermediate_size", "eval-iters": "eval_iters",
    "save-interval": "checkpoint_factor", "exit-interval": "exit_interval", "lr-decay-style": "lr_decay_style",
    "lr-warmup-iters": "warmup", "lr-warmup-samples": "warmup", "clip-grad": "gradient_clipping",
    "moe-layer-freq": "moe_expert_interval", "moe-aux-loss-coeff": "moe_aux_loss_coeff",
    "zero-stage": "zero_optimization.stage",
    "wandb-project": "wandb_project", "wandb-exp-name": "wandb_run_name", "wandb-entity": "wandb_team",
}  # fmt: skip


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
        return [_PARAMETERS[flag]] if flag in _PARAMETERS else []
    parameter = REGISTRY.find(flag)
    has_effect = parameter is not None and "." not in parameter.name and parameter.effect != "none"
    return by_flag().get(flag) or ([parameter.name] if parameter and has_effect else [])


def is_switch(flag: str) -> bool:
    """Return whether a flag takes no value."""
    if flag in SPECIAL:
        return flag in SWITCHES
    types = [REGISTRY.parameters[name].type for name in parameters_of(flag)]
    return f"!{flag}" in by_flag() or any(bool in (kind, *get_args(kind)) for kind in types)


def is_read(flag: str) -> bool:
    """Return whether a flag has a counterpart."""
    return flag in SPECIAL or f"!{flag}" in by_flag() or bool(parameters_of(flag))


def read_flag(reading: Reading, option: Option) -> None:
    """Set the parameters of a flag for which `is_read` is true."""
    if option.name in SPECIAL:
        SPECIAL[option.name](reading, option)
    elif turned_off := by_flag().get(f"!{option.name}"):
        for name in turned_off:
            reading.set(name, False)
    else:
        for name in parameters_of(option.name):
            reading.set_from(option, name)
