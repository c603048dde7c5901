"""The history of GPT-NeoX's parameters: when a name was introduced or removed, and when a default changed.

A dialect is a date, and selects defaults by these tables. They begin with GPT-NeoX as of 28 February 2021, as the
registry does, and end with its main branch as of 20 May 2026. A name that was removed and restored later (whole classes
were, in April 2021 and March 2023) counts as present in between. `deepspeed` is not listed under April 2021, because
the switch is older than the class that was introduced then.
"""

from __future__ import annotations

from datetime import date
from functools import cache
from typing import Any

from neoxargs.registry import REGISTRY, normal

SEED = date(2021, 2, 28)
NEWEST = date(2026, 5, 20)

#: Date -> the names that were introduced; the names of SEED are not listed.
_INTRODUCED = {
    "2021-03-04": "log_dir pos_emb",
    "2021-03-05": "keep_last_n_checkpoints momentum sm3",
    "2021-03-06": "contiguous_checkpointing zero_contiguous_gradients",
    "2021-03-07": "norm scalenorm_epsilon",
    "2021-03-11": "detect_nvlink_pairs",
    "2021-03-15": "git_hash",
    "2021-03-19": "pipe_partition_method",
    "2021-04-14": "no_adamw",
    "2021-04-19": "rotary_emb_base rotary_pct",
    "2021-04-22": (
        "genfile greedy num_samples out_seq_length recompute sample_input_file sample_output_file temperature "
        "text_gen_type top_k top_p"
    ),
    "2021-04-30": (
        "deepscale deepscale_config do_test do_train do_valid dynamic_loss_scale gradient_noise_scale_cpu_offload "
        "gradient_noise_scale_n_batches is_pipe_parallel iteration log_grad_norm log_gradient_noise_scale "
        "log_optimizer_states log_param_norm optimizer_type padded_vocab_size precision rank use_wandb user_script "
        "world_size"
    ),
    "2021-05-02": "attention_config sparsity_config",
    "2021-05-06": "maximum_tokens wandb_host wandb_project",
    "2021-05-07": "activation",
    "2021-05-09": "test_data_path train_data_path valid_data_path",
    "2021-05-11": (
        "init_method output_layer_init_method test_data_paths test_data_weights train_data_paths train_data_weights "
        "valid_data_paths valid_data_weights weight_by_num_documents weighted_sampler_alpha"
    ),
    "2021-05-13": "checkpoint_validation_with_forward_pass",
    "2021-05-19": "gmlp_attn_dim",
    "2021-06-17": "eval_results_prefix eval_tasks",
    "2021-08-31": "char_level_ppl",
    "2021-09-08": "soft_prompt_tuning",
    "2021-09-28": "global_num_gpus",
    "2021-09-29": "gpt_j_residual output_layer_parallelism",
    "2021-10-31": "use_bnb_optimizer",
    "2021-11-26": "config_files",
    "2022-02-24": "log_grad_pct_zeros wandb_init_all_ranks",
    "2022-07-23": "opt_pos_emb_offset",
    "2022-09-07": "return_logits",
    "2022-09-22": "deepspeed_slurm slurm_comment",
    "2022-12-05": "comment",
    "2022-12-06": "gpt_j_tied",
    "2022-12-14": "checkpoint_factor checkpoint_scale extra_save_iters save_iters",
    "2022-12-25": "prompt_end",
    "2023-02-03": "use_shared_fs",
    "2023-03-09": (
        "autotuning autotuning_run base_shapes_file coord_check curriculum_learning curriculum_seqlen mup_attn_temp "
        "mup_embedding_mult mup_init_scale mup_output_temp mup_rp_embedding_mult mup_width_scale no_ssh_check "
        "save_base_shapes use_mup"
    ),
    "2023-03-26": (
        "bf16 checkpoint comms_logger communication_data_type compression_training csv_monitor data_efficiency "
        "data_types deepspeed_extra_args elasticity tensorboard wandb"
    ),
    "2023-03-30": "force_multi",
    "2023-05-02": "mlp_type use_bias_in_attn_linear use_bias_in_norms",
    "2023-06-07": "label_data_paths",
    "2023-09-23": "s3_chunk_size s3_path",
    "2023-12-23": "use_qk_layernorm",
    "2024-01-05": "rope_fusion",
    "2024-01-19": "account",
    "2024-01-26": "layernorm_fusion",
    "2024-02-21": "memory_profiling memory_profiling_path profile profile_step_start profile_step_stop",
    "2024-02-22": "intermediate_size num_kv_heads sliding_window_width",
    "2024-03-04": "rotary_save_freqs_buffer",
    "2024-03-06": (
        "create_moe_param_group expert_interval moe_eval_capacity_factor moe_expert_parallel_size moe_loss_coeff "
        "moe_min_capacity moe_token_dropping moe_top_k moe_train_capacity_factor moe_use_residual num_experts "
        "use_tutel"
    ),
    "2024-03-10": (
        "mamba_causal_conv_fusion mamba_inner_func_fusion mamba_selective_fp32_params mamba_selective_scan_fusion "
        "mamba_use_bias_in_conv mamba_use_bias_in_linears"
    ),
    "2024-05-04": "enable_expert_tensor_parallelism moe_glu moe_jitter_eps moe_lbl_in_fp32 moe_num_experts moe_type",
    "2024-08-23": "sequence_parallel",
    "2024-08-27": "allow_chopped pack_impl test_label_data_paths train_label_data_paths valid_label_data_paths",
    "2024-09-07": "expansion_factor",
    "2024-09-08": (
        "dataset_impl dpo_beta dpo_fp32 neg_test_data_paths neg_test_label_data_paths neg_train_data_paths "
        "neg_train_label_data_paths neg_valid_data_paths neg_valid_label_data_paths pos_test_data_paths "
        "pos_test_label_data_paths pos_train_data_paths pos_train_label_data_paths pos_valid_data_paths "
        "pos_valid_label_data_paths precompute_model_name rmsnorm_fusion train_impl z_loss"
    ),
    "2024-09-09": "comet_experiment_name comet_others comet_project comet_tags comet_workspace use_comet",
    "2024-09-10": (
        "mlp_multiple_of test_reward_data_paths train_reward_data_paths use_bias_in_mlp valid_reward_data_paths"
    ),
    "2024-09-14": (
        "dpo_reference_free kto_beta kto_desirable_weight kto_fp32 kto_undesirable_weight use_flashattn_swiglu"
    ),
    "2024-09-29": "lr_decay_fraction train_epochs",
    "2024-10-08": "comet_experiment dim_att ffn_dim head_size",
    "2024-12-19": (
        "fp32_reinforce kl_div_beta kl_impl online_dataserver_ips online_dataserver_ports peak_theoretical_tflops "
        "reinforce_leave_one_out serve_model_weights te_columnparallel te_fp8_amax_compute_algo "
        "te_fp8_amax_history_len te_fp8_format te_fp8_margin te_fp8_mha te_fp8_wgrad te_layernorm_mlp te_mha "
        "te_rowparallel wandb_run_name weight_server_port"
    ),
    "2025-05-09": "moe_expert_interval moe_router_type",
    "2026-05-20": "fused_kernels_build_path",
}

#: Date -> the names that were removed.
_REMOVED = {
    "2021-03-04": "rpe rpe_causal sinusoidal_pos_emb",
    "2021-03-06": "contigious_checkpointing zero_contigious_gradients",
    "2021-03-07": "rms_norm",
    "2021-03-18": (
        "DDP_impl bert_load block_data_path faiss_use_gpu ict_head_size ict_load indexer_batch_size "
        "indexer_log_interval mask_prob query_in_block_prob report_topk_accuracies titles_data_path use_one_sent_docs"
    ),
    "2021-04-26": (
        "adam_beta1 adam_beta2 adam_eps cpu_optimizer cpu_torch_adam distribute_checkpointed_activations "
        "launcher_args momentum no_adamw onebitadam sm3"
    ),
    "2021-05-02": "sparsity",
    "2021-05-06": "genfile greedy out_seq_length",
    "2021-05-07": "geglu openai_gelu",
    "2021-05-11": "test_data_path train_data_path valid_data_path",
    "2021-08-30": "apply_residual_connection_post_layernorm reset_attention_mask reset_position_ids",
    "2022-12-05": "slurm_comment",
    "2022-12-14": "save_interval",
    "2023-03-26": "zero_allow_untested_optimizer",
    "2024-02-05": "gas",
    "2024-05-04": "num_experts",
    "2024-08-27": "label_data_paths",
    "2024-09-10": "mlp_type",
    "2024-09-29": "save_iters",
    "2025-02-18": "detect_nvlink_pairs",
    "2025-05-09": (
        "create_moe_param_group enable_expert_tensor_parallelism expert_interval moe_eval_capacity_factor "
        "moe_expert_parallel_size moe_glu moe_loss_coeff moe_min_capacity moe_token_dropping "
        "moe_train_capacity_factor moe_type moe_use_residual use_tutel"
    ),
}

#: Parameter -> (date, default from that date on); before the first date the registry's default holds. `log_interval`
#: had the default 100 at SEED and none for two years afterwards; it is treated as 100 throughout.
#: `rms_norm_epsilon_under_root` and `warmup_from_zero`, parameters of deepy, stand for changes in GPT-NeoX's code.
_DEFAULTS: dict[str, tuple[tuple[str, Any], ...]] = {
    "attention_dropout": (("2023-12-26", 0.0),),
    "clip_grad": (("2023-12-26", 1.0),),
    "deepspeed_activation_checkpointing": (("2021-04-30", True),),
    "gradient_clipping": (("2023-03-26", 1.0),),
    "hidden_dropout": (("2023-12-26", 0.0),),
    "moe_token_dropping": (("2024-03-06", True), ("2024-05-04", False)),
    "num_samples": (("2021-04-22", 0), ("2022-02-01", 1)),
    "output_layer_parallelism": (("2021-09-29", "row"), ("2023-05-02", "column")),
    "pipe_partition_method": (("2021-03-19", "type:transformer"), ("2021-05-19", "type:transformer|mlp")),
    "rms_norm_epsilon_under_root": (("2025-05-09", True),),
    "sample_output_file": (("2021-04-22", None), ("2022-02-01", "samples.txt")),
    "temperature": (("2021-04-22", 1.0), ("2021-05-06", 0.0)),
    "text_gen_type": (("2022-02-01", "unconditional"), ("2022-02-10", None)),
    "warmup_from_zero": (("2026-05-19", False),),
    "weight_decay": (("2023-12-26", 0.1),),
    "weighted_sampler_alpha": (("2021-05-11", 0.3), ("2023-12-26", 1.0)),
}


def default_at(name: str, day: date) -> Any:
    """Return the default of a parameter in GPT-NeoX of that day, or the registry's default if it had none.

    The result is ABSENT if the parameter is required or derived. Raises KeyError for an unknown name.
    """
    parameter = REGISTRY.find(name)
    if parameter is None:
        raise KeyError(name)
    return next((default for since, default in reversed(changes(name)) if since <= day), parameter.default)


def changed_defaults(day: date) -> dict[str, Any]:
    """Return name -> default in GPT-NeoX of that day, of the parameters for which the registry's default differs."""
    then = {name: default_at(name, day) for name in _DEFAULTS}
    return {name: default for name, default in then.items() if default != REGISTRY.parameters[name].default}


def changes(name: str) -> tuple[tuple[date, Any], ...]:
    """Return the later defaults of a parameter, each with the date from which it holds."""
    return tuple((date.fromisoformat(since), default) for since, default in _DEFAULTS.get(normal(name), ()))


def introduced(spelling: str) -> date | None:
    """Return the date on which GPT-NeoX introduced a name; None if SEED has it, or GPT-NeoX never had it."""
    return _dates(True).get(normal(spelling))


def removed(spelling: str) -> date | None:
    """Return the date on which GPT-NeoX removed a name, or None."""
    return _dates(False).get(normal(spelling))


@cache
def _dates(introduced: bool) -> dict[str, date]:
    """Return name -> date from the table of introduced or of removed names."""
    table = _INTRODUCED if introduced else _REMOVED
    return {name: date.fromisoformat(day) for day, names in table.items() for name in names.split()}
