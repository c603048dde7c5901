"""Parameters that disable others: which values of a parameter leave another one without effect, and why.

The table describes our train.py with DeepSpeed. It has no row if only the number of ranks disables a parameter, because
the same file is used on other layouts.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from neoxargs.config.config import Config
from neoxargs.facts.layer_kinds import RECURRENT
from neoxargs.registry import REGISTRY
from neoxargs.resolve.effects.conditions import OFF, Condition, Is, IsNot, NoFastWriter, NoneOf
from neoxargs.resolve.rules.model import LAYER_KINDS


class SwitchedOff(NamedTuple):
    """A row of the table: these parameters have no effect while all conditions hold."""

    names: str
    """Names separated by spaces; a trailing `*` matches any suffix."""
    when: Mapping[str, Condition]
    """Switch -> condition."""
    reason: str
    """The reason; follows "has no effect:" in the message."""
    instead: str = ""
    """The hint: how to make the parameter take effect."""

    def applies(self, config: Config, name: str) -> bool:
        """True if the row contains the parameter and every condition holds for a known value."""
        names, prefixes = _split(self.names)
        if name in self.when or not (name in names or name.startswith(prefixes)):
            return False
        return not any(
            switch in config.broken or not condition.holds(config, switch) for switch, condition in self.when.items()
        )


def switched_off_by(config: Config, name: str) -> SwitchedOff | None:
    """Return the row that disables a parameter in this configuration; None if the parameter may have an effect."""
    return next((row for row in SWITCHED_OFF if row.applies(config, name)), None)


@cache
def _split(names: str) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the complete names, and the prefixes of those that end in `*`."""
    words = names.split()
    return frozenset(words), tuple(word[:-1] for word in words if word.endswith("*"))


#: The kinds of layers that consist of attention and a feed-forward network.
WITH_ATTENTION = tuple(kind for kind in LAYER_KINDS if kind not in RECURRENT)
_NOT_NVME = Is(("none", "cpu"))
_NO_ACTIVATIONS = {"checkpoint_activations": OFF}
_CHECKPOINT_OPTIONS = (
    "checkpoint_num_layers deepspeed_activation_checkpointing partition_activations contiguous_checkpointing"
    " distribute_checkpointed_activations checkpoint_in_cpu synchronize_each_layer profile_backward"
    " activation_checkpointing.*"
)
_NOT_LOADED = "no checkpoint is loaded because load is not set", "set load to a folder with a checkpoint"
_SEPARATED = "with pack_impl: best_fit, the documents of a sample are always separated"
_OFFLOADS = "zero_optimization.offload_optimizer", "zero_optimization.offload_param"


def _by_its_switch(section: str) -> SwitchedOff:
    return SwitchedOff(f"{section}.*", {f"{section}.enabled": OFF}, f"{section}.enabled is off")


SWITCHED_OFF = (
    # Precision
    SwitchedOff(
        "loss_scale loss_scale_window min_scale hysteresis fp16.loss_scale fp16.initial_scale_power"
        " fp16.loss_scale_window fp16.hysteresis fp16.consecutive_hysteresis fp16.min_loss_scale",
        {"precision": IsNot(("fp16",))},
        "only fp16 uses a loss scale",
    ),
    SwitchedOff(
        "loss_scale_window min_scale hysteresis fp16.initial_scale_power fp16.loss_scale_window fp16.hysteresis"
        " fp16.consecutive_hysteresis fp16.min_loss_scale",
        {"fp16.loss_scale": IsNot((0, None))},
        "the loss scale is static because loss_scale is not 0",
    ),
    SwitchedOff("fp16.fp16_master_weights_and_grads", {"precision": IsNot(("fp16",))}, "precision is not fp16"),
    SwitchedOff(
        "bf16.immediate_grad_update bf16.check_grad_overflow bf16.bf16_master_weights_and_grads"
        " bf16.bf16_optimizer_states",
        {"precision": IsNot(("bfloat16",))},
        "precision is not bfloat16",
    ),
    SwitchedOff("fp32_allreduce fp16_lm_cross_entropy", {"precision": Is(("fp32",))}, "precision is fp32"),
    # Optimizer
    SwitchedOff(
        "momentum",
        {"optimizer.type": IsNot(REGISTRY.parameters["optimizer.params.momentum"].used_by_types)},
        "the optimizer has no momentum",
    ),
    SwitchedOff(
        "optimizer.params.torch_adam optimizer.params.fp32_optimizer_states",
        {"optimizer.type": Is(("muon",))},
        "train.py has its own Muon, which updates the other weights by its own Adam",
    ),
    # Schedules
    SwitchedOff(
        "lr_decay_iters lr_decay_fraction warmup warmup_from_zero",
        {"scheduler.type": Is(("lrrangetest", "onecycle"))},
        "with this scheduler.type, scheduler.params alone defines the whole schedule",
    ),
    SwitchedOff("warmup_from_zero", {"warmup": Is((0,))}, "warmup is 0"),
    SwitchedOff(
        "lr_decay_iters lr_decay_fraction",
        {"scheduler.type": Is(("warmuplr",))},
        "with scheduler.type WarmupLR, the learning rate does not decay",
    ),
    SwitchedOff(
        "override_lr_scheduler use_checkpoint_lr_scheduler",
        {"scheduler.type": IsNot((None,))},
        "DeepSpeed's schedules (scheduler.type) always resume from the checkpoint",
    ),
    SwitchedOff("override_lr_scheduler use_checkpoint_lr_scheduler", {"load": OFF}, *_NOT_LOADED),
    SwitchedOff(
        "min_lr",
        {"lr_decay_style": Is(("constant",))},
        "with lr_decay_style constant, the learning rate does not decay",
    ),
    SwitchedOff("scheduler.params.*", {"scheduler.type": OFF}, "scheduler.type is not set"),
    SwitchedOff(
        "scheduler.params.decay_lr_rate scheduler.params.decay_mom_rate",
        {"scheduler.params.decay_step_size": Is((0,))},
        "scheduler.params.decay_step_size is 0",
    ),
    SwitchedOff(
        "scheduler.params.cycle_min_mom scheduler.params.cycle_max_mom scheduler.params.decay_mom_rate",
        {"scheduler.params.cycle_momentum": OFF},
        "scheduler.params.cycle_momentum is off",
    ),
    # Memory
    SwitchedOff(
        _CHECKPOINT_OPTIONS,
        _NO_ACTIVATIONS,
        "checkpoint_activations is off",
    ),
    SwitchedOff(
        _CHECKPOINT_OPTIONS,
        {"checkpoint_activations": Is(("selective",))},
        "with checkpoint_activations: selective, no layer inputs are stored",
    ),
    *(
        SwitchedOff(f"{section}.*", {f"{section}.device": OFF}, f"{section}.device is none, so nothing is offloaded")
        for section in _OFFLOADS
    ),
    *(
        SwitchedOff(
            " ".join(f"{section}.{name}" for name in names.split()),
            {f"{section}.device": Is(("cpu",))},
            f"{section}.device is not nvme",
        )
        for section, names in zip(
            _OFFLOADS,
            (
                "nvme_path buffer_count pipeline_read pipeline_write fast_init",
                "nvme_path buffer_count buffer_size max_in_cpu",
            ),
            strict=True,
        )
    ),
    SwitchedOff(
        "aio.*",
        {**{f"{section}.device": _NOT_NVME for section in _OFFLOADS}, "checkpoint.writer.type": NoFastWriter()},
        "nothing is offloaded to NVMe, and DeepSpeed's fast checkpoint writer is not used",
    ),
    SwitchedOff(
        "zero_optimization.offload_optimizer.cpuadam_cores_perc",
        {"zero_optimization.offload_optimizer.super_offload": OFF},
        "zero_optimization.offload_optimizer.super_offload is off",
    ),
    SwitchedOff("zero_optimization.*", {"zero_optimization.stage": OFF}, "zero_optimization.stage is 0"),
    SwitchedOff(
        "zero_optimization.overlap_comm",
        {"is_pipe_parallel": Is((True,))},
        "DeepSpeed's pipeline engine (pipe_parallel_size of 1 or more) does not overlap communication",
    ),
    SwitchedOff(
        "zero_optimization.stage3_* zero_optimization.sub_group_size zero_optimization.zero_hpz_partition_size"
        " zero_optimization.zero_quantized_* zero_optimization.mics_* zero_optimization.memory_efficient_linear"
        " zero_optimization.pipeline_loading_checkpoint zero_optimization.override_module_apply"
        " zero_optimization.log_trace_cache_warnings"
        " zero_optimization.leaf_module.*",
        {"zero_optimization.stage": Is((1, 2))},
        "zero_optimization.stage is not 3",
    ),
    SwitchedOff(
        "zero_allgather_bucket_size zero_optimization.allgather_bucket_size"
        " zero_optimization.use_multi_rank_bucket_allreduce"
        " zero_optimization.ignore_unused_parameters zero_optimization.round_robin_gradients",
        {"zero_optimization.stage": Is((3,))},
        "zero_optimization.stage is neither 1 nor 2",
    ),
    SwitchedOff(
        "zero_optimization.mics_hierarchical_params_gather",
        {"zero_optimization.mics_shard_size": Is((-1,))},
        "zero_optimization.mics_shard_size is -1",
    ),
    SwitchedOff(
        "zero_optimization.zeropp_loco_param.*",
        {"zero_optimization.zero_quantized_gradients": OFF},
        "zero_optimization.zero_quantized_gradients is off",
    ),
    SwitchedOff(
        "gradient_predivide_factor",
        {"prescale_gradients": Is((True,))},
        "with prescale_gradients, DeepSpeed divides gradients by the number of ranks instead",
    ),
    # Model
    SwitchedOff(
        "base_shapes_file mup_*", {"use_mup": OFF, "save_base_shapes": OFF, "coord_check": OFF}, "use_mup is off"
    ),
    SwitchedOff("mamba_*", {"attention_config": NoneOf(("mamba",))}, "attention_config has no mamba layers"),
    SwitchedOff("mamba_use_bias_in_x_proj", {"mamba_use_bias_in_linears": OFF}, "mamba_use_bias_in_linears is off"),
    SwitchedOff(
        "num_kv_heads head_dim attention_dropout attention_softmax_in_fp32 use_bias_in_attn_linear use_bias_in_mlp"
        " add_qkv_bias activation mlp_multiple_of gpt_j_residual gpt_j_tied use_qk_layernorm sliding_window_width"
        " softmax_scale attn_logit_softcapping bias_gelu_fusion compile_layers moe_*",
        {"attention_config": NoneOf(WITH_ATTENTION)},
        "attention_config has no layers with attention and feed-forward",
    ),
    SwitchedOff(
        "dim_att head_size ffn_dim", {"attention_config": NoneOf(("rwkv",))}, "attention_config has no rwkv layers"
    ),
    SwitchedOff(
        "norm_placement apply_residual_connection_post_layernorm output_layer_init_method",
        {"attention_config": NoneOf(tuple(kind for kind in LAYER_KINDS if kind != "rwkv"))},
        "rwkv layers have norms and initial values of their own, and attention_config has no other layers",
    ),
    SwitchedOff(
        "rotary_pct rotary_emb_base rope_local_base_freq rope_scaling.* rope_fusion",
        {"pos_emb": IsNot(("rotary",))},
        "pos_emb is not rotary",
    ),
    SwitchedOff("rope_scaling.*", {"rope_scaling.rope_type": Is(("default",))}, "rope_scaling.rope_type is default"),
    SwitchedOff("rope_local_base_freq", {"sliding_window_width": OFF}, "sliding_window_width is not set"),
    SwitchedOff(
        "apply_layernorm_1p",
        {"norm": Is(("scalenorm", "non_parametric_layernorm"))},
        "this norm has no per-channel weights",
    ),
    SwitchedOff("rpe_num_buckets rpe_max_distance rpe_causal", {"pos_emb": IsNot(("rpe",))}, "pos_emb is not rpe"),
    SwitchedOff("opt_pos_emb_offset", {"pos_emb": IsNot(("learned",))}, "pos_emb is not learned"),
    SwitchedOff(
        "layernorm_epsilon",
        {"norm": IsNot(("layernorm", "non_parametric_layernorm"))},
        "norm is neither layernorm nor non_parametric_layernorm",
    ),
    SwitchedOff("rms_norm_epsilon rms_norm_epsilon_under_root", {"norm": IsNot(("rmsnorm",))}, "norm is not rmsnorm"),
    SwitchedOff("scalenorm_epsilon", {"norm": IsNot(("scalenorm",))}, "norm is not scalenorm"),
    SwitchedOff(
        "init_method_std",
        {
            name: IsNot(("normal", "scaled_normal", "single_residual_scaled_normal"))
            for name in ("init_method", "output_layer_init_method")
        },
        "init_method and output_layer_init_method compute their own standard deviations",
    ),
    SwitchedOff(
        "moe_* enable_expert_tensor_parallelism",
        {"moe_num_experts": Is((1,))},
        "moe_num_experts is 1",
    ),
    SwitchedOff(
        "moe_train_capacity_factor moe_eval_capacity_factor moe_min_capacity",
        {"moe_token_dropping": OFF},
        "moe_token_dropping is off",
    ),
    SwitchedOff("moe_use_residual", {"moe_type": IsNot(("deepspeed",))}, "moe_type is not deepspeed"),
    SwitchedOff("gpt_j_tied", {"gpt_j_residual": OFF}, "gpt_j_residual is off"),
    SwitchedOff("qk_layernorm_scope", {"use_qk_layernorm": OFF}, "use_qk_layernorm is off"),
    SwitchedOff("window_attn_skip_freq", {"sliding_window_width": OFF}, "sliding_window_width is not set"),
    SwitchedOff("add_qkv_bias", {"use_bias_in_attn_linear": Is((True,))}, "use_bias_in_attn_linear is on"),
    SwitchedOff(
        "param_sharing_style", {"num_unique_layers": OFF}, "num_unique_layers is not set, so no layers share weights"
    ),
    # Data
    SwitchedOff(
        "split",
        {"data_path": OFF, "train_data_paths": IsNot((None,))},
        "train_data_paths, valid_data_paths and test_data_paths already define the splits",
    ),
    *(
        SwitchedOff(
            f"{part}_data_weights",
            {f"{part}_data_paths": OFF, f"pos_{part}_data_paths": OFF},
            f"{part}_data_paths is not set",
        )
        for part in ("train", "valid", "test")
    ),
    SwitchedOff(
        "vocab_file merge_file",
        {"tokenizer_type": Is(("byteleveltokenizer", "charleveltokenizer"))},
        "this tokenizer_type has no vocabulary file",
    ),
    SwitchedOff("allow_chopped", {"pack_impl": Is(("packed",))}, "with pack_impl: packed, any document may be split"),
    SwitchedOff("reset_position_ids reset_attention_mask", {"pack_impl": Is(("best_fit",))}, _SEPARATED),
    SwitchedOff("weighted_sampler_alpha", {"weight_by_num_documents": OFF}, "weight_by_num_documents is off"),
    SwitchedOff("dpo_*", {"train_impl": IsNot(("dpo",))}, "train_impl is not dpo", "set train_impl: dpo"),
    SwitchedOff(
        "kto_* train_reward_data_paths valid_reward_data_paths test_reward_data_paths",
        {"train_impl": IsNot(("kto",))},
        "train_impl is not kto",
        "set train_impl: kto",
    ),
    SwitchedOff(
        "pos_train_* pos_valid_* pos_test_* neg_*",
        {"dataset_impl": IsNot(("pairwise",))},
        "dataset_impl is not pairwise",
        "set dataset_impl: pairwise",
    ),
    SwitchedOff(
        "eval_interval",
        {"dataset_impl": Is(("pairwise",)), "pos_valid_data_paths": OFF, "eval_prompts": OFF, "eval_prompts_file": OFF},
        "pos_valid_data_paths is not set, so there is no validation data",
        "set pos_valid_data_paths and neg_valid_data_paths",
    ),
    SwitchedOff("fp16_lm_cross_entropy", {"train_impl": Is(("rm",))}, "a reward model has no logits"),
    SwitchedOff("checkpoint_validation_with_forward_pass", {"train_impl": Is(("rm",))}, "a reward model has no logits"),
    SwitchedOff(
        "z_loss fp16_lm_cross_entropy",
        {"train_impl": Is(("dpo", "kto"))},
        "the loss of preference training is no cross entropy of single tokens",
    ),
    SwitchedOff("lora.*", {"lora.rank": OFF}, "lora.rank is 0", "set lora.rank, for example lora: {rank: 16}"),
    # The run and its checkpoints
    SwitchedOff("adlr_autoresume_interval", {"adlr_autoresume": OFF}, "adlr_autoresume is off"),
    SwitchedOff(
        "checkpoint_factor checkpoint_scale extra_save_iters keep_last_n_checkpoints no_save_optim no_save_rng "
        "save_in_background",
        {"save": OFF},
        "no checkpoint is saved because save is not set",
        "set save to a folder",
    ),
    SwitchedOff("no_load_optim no_load_rng finetune iteration", {"load": OFF}, *_NOT_LOADED),
    # Logs
    SwitchedOff(
        "wandb_project wandb_group wandb_run_name wandb_team wandb_host",
        {"use_wandb": OFF, "wandb.enabled": OFF},
        "use_wandb is off",
        "set use_wandb: true",
    ),
    SwitchedOff(
        "comet_workspace comet_project comet_experiment_name comet_tags comet_others",
        {"use_comet": OFF, "comet.enabled": OFF},
        "use_comet is off",
        "set use_comet: true",
    ),
    SwitchedOff(
        "profile_step_start profile_step_stop",
        {"profile": OFF, "memory_profiling": OFF},
        "profile and memory_profiling are off",
    ),
    SwitchedOff("memory_profiling_path", {"memory_profiling": OFF}, "memory_profiling is off"),
    SwitchedOff(
        "gradient_noise_scale_n_batches gradient_noise_scale_cpu_offload",
        {"log_gradient_noise_scale": OFF},
        "log_gradient_noise_scale is off",
    ),
    *map(
        _by_its_switch,
        ("tensorboard", "wandb", "csv_monitor", "comet", "comms_logger", "flops_profiler", "autotuning", "nebula"),
    ),
    SwitchedOff("bind_core_list", {"bind_cores_to_rank": OFF}, "bind_cores_to_rank is off"),
)
