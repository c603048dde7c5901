"""Parameters that another one switches off: written beside it they change nothing, which `check` tells with their line.

A table for our own train.py and the DeepSpeed under it. What only the number of ranks makes idle is left out: the same
file is meant for other layouts. So is what a switch of its own turns off in so many words (`fp16: {enabled: false}`,
`checkpoint_activations: false`): it waits there to be turned on again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from neoxargs.registry import ABSENT
from neoxargs.resolve.config import Config


class Is(NamedTuple):
    """The switch has one of these values; text is compared without regard to case."""

    values: tuple[Any, ...]

    def holds(self, value: Any) -> bool:
        return _plain(value) in self.values


class IsNot(NamedTuple):
    """The switch has none of these values."""

    values: tuple[Any, ...]

    def holds(self, value: Any) -> bool:
        return value is not ABSENT and _plain(value) not in self.values


class Idle(NamedTuple):
    """A row of the table."""

    names: str
    """Parameters with spaces between them; `*` at an end stands for anything."""
    when: Mapping[str, Is | IsNot]
    """They are idle while every one of these switches is as it says."""
    because: str
    """Why, in words that can stand after "has no effect:"."""
    instead: str = ""
    """What to write where that is what was meant."""


#: Also 0, which equals False.
OFF = Is((False, None, "none", ""))
_NOT_NVME = Is(("none", "cpu"))
_NO_ACTIVATIONS = {"checkpoint_activations": OFF}
_NOT_LOADED = "nothing is loaded, as load is not given", "write load: FOLDER"
_OFFLOADS = "zero_optimization.offload_optimizer", "zero_optimization.offload_param"


def _switched_by(section: str, switch: str = "enabled") -> Idle:
    return Idle(f"{section}.*", {f"{section}.{switch}": OFF}, f"{section}.{switch} is off")


IDLE = (
    # Precision
    Idle(
        "loss_scale loss_scale_window min_scale hysteresis fp16.loss_scale fp16.initial_scale_power"
        " fp16.loss_scale_window fp16.hysteresis fp16.consecutive_hysteresis fp16.min_loss_scale",
        {"precision": IsNot(("fp16",))},
        "only fp16 scales its loss",
    ),
    Idle(
        "loss_scale_window min_scale hysteresis fp16.initial_scale_power fp16.loss_scale_window fp16.hysteresis"
        " fp16.consecutive_hysteresis fp16.min_loss_scale",
        {"fp16.loss_scale": IsNot((0, None))},
        "the loss scale does not change, as loss_scale is not 0",
    ),
    Idle("fp16.fp16_master_weights_and_grads", {"precision": IsNot(("fp16",))}, "nothing is computed in fp16"),
    Idle(
        "bf16.immediate_grad_update bf16.check_grad_overflow bf16.bf16_master_weights_and_grads"
        " bf16.bf16_optimizer_states",
        {"precision": IsNot(("bfloat16",))},
        "nothing is computed in bfloat16",
    ),
    Idle("fp32_allreduce fp16_lm_cross_entropy", {"precision": Is(("fp32",))}, "everything is computed in fp32"),
    # Schedules
    Idle(
        "lr_decay_iters lr_decay_fraction warmup",
        {"scheduler.type": Is(("lrrangetest", "onecycle"))},
        "DeepSpeed's scheduler.type has a course of its own",
    ),
    Idle(
        "lr_decay_iters lr_decay_fraction",
        {"scheduler.type": Is(("warmuplr",))},
        "scheduler.type WarmupLR does not fall again",
    ),
    Idle(
        "override_lr_scheduler use_checkpoint_lr_scheduler",
        {"scheduler.type": IsNot((None,))},
        "a schedule of DeepSpeed's (scheduler.type) continues as it was saved",
    ),
    Idle("override_lr_scheduler use_checkpoint_lr_scheduler", {"load": OFF}, *_NOT_LOADED),
    Idle("min_lr", {"lr_decay_style": Is(("constant",))}, "with lr_decay_style (constant) the rate does not fall"),
    Idle("scheduler.params.*", {"scheduler.type": OFF}, "there is no scheduler.type"),
    Idle(
        "scheduler.params.decay_lr_rate scheduler.params.decay_mom_rate",
        {"scheduler.params.decay_step_size": Is((0,))},
        "scheduler.params.decay_step_size is 0",
    ),
    Idle(
        "scheduler.params.cycle_min_mom scheduler.params.cycle_max_mom scheduler.params.decay_mom_rate",
        {"scheduler.params.cycle_momentum": OFF},
        "scheduler.params.cycle_momentum is off",
    ),
    # Memory
    Idle(
        "checkpoint_num_layers deepspeed_activation_checkpointing partition_activations contiguous_checkpointing"
        " distribute_checkpointed_activations checkpoint_in_cpu synchronize_each_layer profile_backward"
        " activation_checkpointing.*",
        _NO_ACTIVATIONS,
        "checkpoint_activations is off",
    ),
    *(
        Idle(f"{section}.*", {f"{section}.device": OFF}, f"{section}.device is none, and nothing is offloaded")
        for section in _OFFLOADS
    ),
    *(
        Idle(
            " ".join(f"{section}.{name}" for name in names.split()),
            {f"{section}.device": Is(("cpu",))},
            f"only {section}.device nvme reads it",
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
    Idle(
        "aio.*",
        {**{f"{section}.device": _NOT_NVME for section in _OFFLOADS}, "checkpoint.writer.type": Is(("fast",))},
        "nothing is kept on NVMe",
    ),
    Idle(
        "zero_optimization.offload_optimizer.cpuadam_cores_perc",
        {"zero_optimization.offload_optimizer.super_offload": OFF},
        "only super_offload reads it",
    ),
    Idle("zero_optimization.*", {"zero_optimization.stage": OFF}, "zero_optimization.stage is 0"),
    Idle(
        "zero_optimization.stage3_* zero_optimization.sub_group_size zero_optimization.zero_hpz_partition_size"
        " zero_optimization.zero_quantized_* zero_optimization.mics_* zero_optimization.memory_efficient_linear"
        " zero_optimization.pipeline_loading_checkpoint zero_optimization.override_module_apply"
        " zero_optimization.log_trace_cache_warnings zero_optimization.save_muon_momentum_buffer_in_memory"
        " zero_optimization.leaf_module.*",
        {"zero_optimization.stage": Is((1, 2))},
        "only zero_optimization.stage 3 reads it",
    ),
    Idle(
        "zero_allgather_bucket_size zero_optimization.allgather_bucket_size"
        " zero_optimization.use_multi_rank_bucket_allreduce"
        " zero_optimization.ignore_unused_parameters zero_optimization.round_robin_gradients",
        {"zero_optimization.stage": Is((3,))},
        "only zero_optimization.stage 1 and 2 read it",
    ),
    Idle(
        "zero_optimization.mics_hierarchical_params_gather",
        {"zero_optimization.mics_shard_size": Is((-1,))},
        "zero_optimization.mics_shard_size is off",
    ),
    Idle(
        "zero_optimization.zeropp_loco_param.*",
        {"zero_optimization.zero_quantized_gradients": OFF},
        "zero_optimization.zero_quantized_gradients is off",
    ),
    Idle("gradient_predivide_factor", {"prescale_gradients": Is((True,))}, "prescale_gradients divides by the ranks"),
    # Model
    Idle("rotary_pct rotary_emb_base", {"pos_emb": IsNot(("rotary",))}, "pos_emb is not rotary"),
    Idle("rpe_num_buckets rpe_max_distance", {"pos_emb": IsNot(("rpe",))}, "pos_emb is not rpe"),
    Idle("opt_pos_emb_offset", {"pos_emb": IsNot(("learned",))}, "pos_emb is not learned"),
    Idle(
        "layernorm_epsilon",
        {"norm": IsNot(("layernorm", "non_parametric_layernorm"))},
        "norm is neither layernorm nor non_parametric_layernorm",
    ),
    Idle("rms_norm_epsilon", {"norm": IsNot(("rmsnorm",))}, "norm is not rmsnorm"),
    Idle("scalenorm_epsilon", {"norm": IsNot(("scalenorm",))}, "norm is not scalenorm"),
    Idle(
        "init_method_std",
        {
            name: IsNot(("normal", "scaled_normal", "single_residual_scaled_normal"))
            for name in ("init_method", "output_layer_init_method")
        },
        "init_method and output_layer_init_method compute their own",
    ),
    Idle("gpt_j_tied", {"gpt_j_residual": OFF}, "gpt_j_residual is off"),
    Idle("param_sharing_style", {"num_unique_layers": OFF}, "num_unique_layers is not given, and no layers are shared"),
    # Data
    Idle("split", {"data_path": OFF, "train_data_paths": IsNot((None,))}, "the parts have files of their own"),
    *(
        Idle(f"{part}_data_weights", {f"{part}_data_paths": OFF}, f"there are no {part}_data_paths")
        for part in ("train", "valid", "test")
    ),
    Idle("weighted_sampler_alpha", {"weight_by_num_documents": OFF}, "weight_by_num_documents is off"),
    # The run and its checkpoints
    Idle("adlr_autoresume_interval", {"adlr_autoresume": OFF}, "adlr_autoresume is off"),
    Idle(
        "checkpoint_factor checkpoint_scale extra_save_iters keep_last_n_checkpoints no_save_optim no_save_rng",
        {"save": OFF},
        "nothing is saved, as save is not given",
        "write save: FOLDER",
    ),
    Idle("no_load_optim no_load_rng finetune iteration", {"load": OFF}, *_NOT_LOADED),
    # Logs
    Idle(
        "wandb_project wandb_group wandb_run_name wandb_team wandb_host",
        {"use_wandb": OFF, "wandb.enabled": OFF},
        "use_wandb is off",
        "write use_wandb: true",
    ),
    Idle(
        "comet_workspace comet_project comet_experiment_name comet_tags comet_others",
        {"use_comet": OFF, "comet.enabled": OFF},
        "use_comet is off",
        "write use_comet: true",
    ),
    Idle(
        "profile_step_start profile_step_stop",
        {"profile": OFF, "memory_profiling": OFF},
        "neither profile nor memory_profiling is on",
    ),
    Idle("memory_profiling_path", {"memory_profiling": OFF}, "memory_profiling is off"),
    Idle(
        "gradient_noise_scale_n_batches gradient_noise_scale_cpu_offload",
        {"log_gradient_noise_scale": OFF},
        "log_gradient_noise_scale is off",
    ),
    *map(
        _switched_by,
        ("tensorboard", "wandb", "csv_monitor", "comet", "comms_logger", "flops_profiler", "autotuning", "nebula"),
    ),
    Idle("bind_core_list", {"bind_cores_to_rank": OFF}, "bind_cores_to_rank is off"),
)


def idle(config: Config, name: str) -> Idle | None:
    """The row that says why a parameter changes nothing in this configuration; None where it may."""
    return next((row for row in IDLE if _is_among(name, row) and _holds(row, config)), None)


def _is_among(name: str, row: Idle) -> bool:
    if name in row.when:
        return False
    return any(name.startswith(word[:-1]) if word[-1] == "*" else name == word for word in row.names.split())


def _holds(row: Idle, config: Config) -> bool:
    for switch, condition in row.when.items():
        turned_off = condition is OFF and config.written(switch)
        if switch in config.broken or turned_off or not condition.holds(config.get(switch)):
            return False
    return True


def _plain(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value
