"""Keys of programs near GPT-NeoX, by exact name: whose they are, and what says the same here.

Read from the sources that each program names (in 2026); only names that no parameter of ours has anywhere.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from neoxargs.problems import listed
from neoxargs.registry import REGISTRY


class Program(NamedTuple):
    """Somebody else's keys."""

    name: str
    fork: bool
    """Is it a fork of GPT-NeoX, whose training script runs under our launcher?"""
    source: str
    keys: str
    """Separated by spaces; `a_(b c)` is `a_b a_c`."""


def whose(key: str) -> str:
    """Whose top-level key it is and what says the same here, in a sentence; empty where nobody is known to have it."""
    programs, meant = _programs().get(key.lower()), INSTEAD.get(key)
    if programs is None:
        return ""
    said = f"it is a parameter of {listed(dict.fromkeys(program.name for program in programs), 'and')}"
    if meant in REGISTRY.parameters:
        return f"{said}; here it is {meant}: {REGISTRY.parameters[meant].brief}"
    if meant:
        return f"{said}; {meant}"
    if any(program.fork for program in programs):
        return f"{said}: leave it out, or declare it in a plugin for that fork's script"
    return f"{said}, which has no counterpart here: leave it out"


@cache
def _programs() -> dict[str, list[Program]]:
    found: dict[str, list[Program]] = {}
    for program in PROGRAMS:
        for key in expanded(program.keys):
            found.setdefault(key.lower(), []).append(program)
    return found


def expanded(keys: str) -> list[str]:
    """`a_(b c) d` as `a_b`, `a_c`, `d`."""
    parts = [part.split() for part in re.split(r"[()]", keys)]
    words = parts[0]
    for endings, after in zip(parts[1::2], parts[2::2], strict=True):
        before = words.pop()
        words += [f"{before}{ending}" for ending in endings] + after
    return words


PROGRAMS = (
    Program("savanna", True, "Zymrael/savanna, savanna/arguments/global_config.py", """
        pretraining_strategy tie_projection_weights to_upper lowercase_loss_reweighting use_fp8_(linears
        mlp_projections hyena_mlp_input_projections hyena_mlp_output_projections input_projections output_projections
        norm) prenorm postnorm pre_mlp_norm outer_mlp_norm materialize_attn_mask operator_config use_flashfft use_cgcg
        use_cgcg_short use_cgcg_mlp cgcg_(dtype fwd_autotune bwd_autotune fused_bwd)
        cgcg_medium_fwd_kernel_config_(chunk_size block_d threadblock_swizzle chunk_tiles_per_program num_warps
        num_stages) cgcg_short_fwd_kernel_config_(chunk_size block_d threadblock_swizzle chunk_tiles_per_program
        num_warps num_stages) cgcg_bwd_kernel_config_pre_conv_(block_x block_y num_warps num_stages)
        cgcg_bwd_kernel_config_post_conv_(block_x block_y num_warps num_stages) short_conv_L use_hyena_filter
        normalize_hyena_filters conv_proj_bias use_fast_heads use_slow_heads use_long_conv1d num_heads_2
        num_groups_hyena num_groups_hyena_(medium short mlp) use_depthwise_short_conv_grouping
        hyena_filter_(cls r_max r_min emb_dim fast_decay slow_decay order num_inner_mlps w wd omega_0)
        hyena_width_expansion hyena_medium_filter_cls hyena_pos_emb explicit_filter_decay_preset
        explicit_filter_num_decay_repeats modal_(residue_factors pole_factors gamma_min gamma_max)
        use_custom_hyena_short_kernel use_custom_hyena_mlp_kernel bidirectional hyena_short_conv_len
        hyena_short_conv_pregate hyena_short_conv_postgate hyena_medium_conv_len hyena_se_(len pregate postgate)
        hyena_mr_len hyena_mlp_(len expansion_factor pregate postgate) fast_conv_proj fast_conv_mixer
        fast_hyena_mlp_conv gating_act proj_groups grouped_attention log_attn_norms log_hyena_norms
        parallel_glu_activation_default rotary_emb_scaling_factor rotary_emb_max_unscaled_seq_len
        make_gated_mlp_multiple_of identity_mlp expandable_segments recycle_events disable_gc gc_collect_generation
        prealloc_mem zero_use_leaf_modules zero_leaf_modules zero_use_mics patch_record_stream
        record_stream_flush_frequency record_stream_backlog lr_medium_hyena wd_free_lr use_checkpoint_num_samples
        log_memory_stats log_memory_alloc_counts print_mem_alloc_stats mem_alloc_stats_ranks
        deepspeed_enable_comms_logging deepspeed_comms_(print_summary ranks_to_log ops_to_log logging_interval
        logging_verbose logging_debug) debug_dir debug_print should_profile profiler_type profile_cpu profile_cuda
        profile_memory profile_with_stack profile_record_shapes profile_with_flops
        profiler_schedule_(wait warmup active repeat) profiler_(output_dir clean_output_dir num_rows) emit_nvtx
        disable_autograd_multithreading nsys_(stop_on_exit warmup_steps num_steps) use_next next_gather_on_rank0
        next_report_interval heimdall_(log_straggler log_interval disable_straggler_on_startup straggler_port
        straggler_minmax_count) enable_memory_snapshot save_memory_snapshot_folder memory_snapshot_(rank0_only freq
        max_entries) pad_mask_loss deepspeed_jsrun enforce_sample_length checkpoint_strict_load alignment_method
        dpo_data_seq_length train_data_token_index train_val_test_num_samples"""),
    Program("TokenFormer", True, "Haiyang-W/TokenFormer, megatron/neox_arguments/neox_args.py", """
        qkv_slot_num proj_slot_num ffn_slot_num qkv_slot_num_new proj_slot_num_new ffn_slot_num_new
        pretrain_partial_init final_norm norm_activation_type tokenformer_use load_module_strict old_lr_decay
        old_lr_decay_scale scale_pretrain transformer_increase_dim
        init_for_transformer_chunk"""),
    Program("Stability AI's GPT-NeoX", True, "Stability-AI/gpt-neox, megatron/neox_arguments/neox_args.py", """
        attention_head_type rotary_interleaved rotary_scale_base wandb_id wandb_resume wandb_dir wandb_name slurm_job_id
        neox_working_dir neox_launch_cmd neox_launch_config_path neox_launch_job_name heartbeat_init_timeout
        heartbeat_timeout kill_timeout save_interval_timeout eval_interval_timeout s3_region eval_batch_size
        skip_train_iteration_ranges eval_num_fewshot eval_limit use_flash_cross_entropy
        full_precision_lm_cross_entropy cooldown s3_sync_interval use_bias_in_qk_norm"""),
    Program("BlinkDL's GPT-NeoX", True, "BlinkDL/gpt-neox, megatron/neox_arguments/neox_args.py", """
        small_init_emb_and_layernorm"""),
    Program("AGI Collective's multimodal GPT-NeoX", True, "AGI-Collective/multimodal, .../neox_args.py", """
        vision_seq_length concat_data attn_uses_sequence_id position_pad_id train_streaming_data_config
        valid_streaming_data_config test_streaming_data_config"""),
    Program("continual-pretraining's GPT-NeoX", True, "chandar-lab/continual-pretraining, .../neox_args.py", """
        num_repeats load_buffer use_replay file_size buffer_dir fill_buffer_size forget_path replay_buffer_proportion
        train_proportion eff_batch_size"""),
    Program("a branch of GPT-NeoX", True, "EleutherAI/gpt-neox, configs of its branches", """
        coord_check_nsteps coord_check_nseeds mup_lr mup_std mup_d_model_base mup_hidden_size mup_save batch_scheduling
        adapter_config gradient_ascent_loss_scale moe_deepspeed_expert_parallel_size extra_sentinel_tokens fim_rate"""),
    Program("Mila's GPT-NeoX", True, "vaibhav016/gpt-neox and jhuang265/gpt-neox, configs", """
        identifier_string train_dataset_name val_dataset_name replay_config constant_lr constant_iters_(perc percent)
        cooldown_iters_(perc percent) timescale small_init_embedding train_on_new_dataset_from_old_checkpoint"""),
    Program("Geodesic's GPT-NeoX", True, "GeodesicResearch/geodesic-gpt-neox, .../neox_args.py, and its configs", """
        ga_(dataset dataset_impl interval iters lr_scale mode interleave_ratio loss_threshold threshold_check_mode
        threshold_skip_forward) gd_mode gd_retain_(dataset dataset_impl weight) gd_log_separate_losses eval_task_limit
        nemotron_hybrid_pattern mamba2_(num_heads head_dim state_size conv_kernel n_groups chunk_size expand
        use_conv_bias) moe_(n_shared_experts routed_intermediate_size routed_scaling_factor routing_type n_group
        topk_group e_score_correction)"""),
    Program("a GPT-NeoX with experts of low rank", True, "zainsarwar865/gpt-neox, .../neox_args.py and configs", """
        branch moe_lora_(experts aux_loss_coeff alpha) num_minion_experts lora_(top_k rank interaction_type)
        train_dataset_name hn_(lora_rank use_svd) per_expert_hn hypernetwork_bottleneck_dim base_dir
        moe_shared_expert_hidden_size moe_use_shared_expert moe_log_counts_interval"""),
    Program("Tilde's GPT-NeoX", True, "tilde-nlp/llm-gpt-neox, train_configs", """
        iteration_offset batch_iteration_offset"""),
    Program("TempNet's GPT-NeoX", True, "zhqiu/TempNet, its configs", """
        temp use_tempnet tempnet_rho tempnet_lr"""),
    Program("TractoAI's GPT-NeoX", True, "gritukan/gpt-neox-tractoai, its configs", """
        load_tracto"""),
    Program("OpenBioML's GPT-NeoX", True, "OpenBioML/gpt-neox, its configs", """
        ia3_tuning"""),
    Program("Livia's GPT-NeoX", True, "shodh-ai/Livia, its configs", """
        crms_norm_epsilon linear_zero_mean norm_rearrange CA_embedding CAE_window_size"""),
    Program("a distilling GPT-NeoX", True, "preethamgali/gpt-neox, its configs", """
        do_distillation reduce_loss_fp16 alpha_(lm kld mse) student_model_args teacher_model_args distil_data_gen"""),
    Program("gpt-moe", True, "ZhiYuanZeng/gpt-moe, configs", """
        from_dense_to_moe ep_world_size moe_freq moe_aux_loss_weight load_iteration moe_loss_weight moe_share_layers
        moe_noisy_gate_policy moe_elbo_args moe_normalize_expert_grad moe_capacity_factor"""),
    Program("StripedHyena and vortex", False, "configurations of StripedHyena, Evo and Evo 2", """
        attn_layer_idxs hyena_layer_idxs hcl_(layer_idxs filter_groups) hcm_(layer_idxs filter_length filter_groups)
        hcs_(layer_idxs filter_length filter_groups) num_filters inner_mlp_size short_filter_(length bias)
        hyena_filter_groups hyena_flip_x1x2 hyena_out_proj_bias hyena_block_dtype mha_out_proj_bias qkv_proj_bias
        column_split column_split_hyena evo2_style_activations prefill_style inner_size_multiple_of attn_block_dtype
        mlp_dtype max_seqlen use_flash_(rmsnorm depthwise) use_interpolated_rotary_pos_emb use_laughing_hyena
        state_size log_intermediate_values interleave tie_embeddings inference_mode print_activations
        mlp_(init_method output_init_method)"""),
    Program("gpt-neox-j", True, "Lisennlp/gpt-neox-j, configs", """
        rotary_dim only_eval icl_or_neo"""),
    Program("polycoder's GPT-NeoX", True, "vyaivo/code-lms, polycoder/configs", """
        finetune_data_path data_keys_collate"""),
    Program("Accelerate", False, "huggingface/accelerate, src/accelerate/commands/config/config_args.py", """
        compute_environment distributed_type machine_rank gpu_ids rdzv_backend same_network main_training_function
        enable_cpu_affinity fp8_config deepspeed_config tp_config megatron_lm_config ipex_config mpirun_config
        downcast_bf16 tpu_name tpu_zone tpu_use_cluster tpu_use_sudo command_file commands tpu_vm tpu_env
        dynamo_config dynamo_backend use_cpu zero3_init_flag zero3_save_16bit_model deepspeed_multinode_launcher
        deepspeed_config_file"""),
    Program("online-data-mixing's GPT-NeoX", True, "alon-albalak/online-data-mixing, .../neox_args.py", """
        use_named_train_datasets use_named_eval_datasets max_validation_samples_per_dataset
        max_test_samples_per_dataset eval_harness_interval do_lm_harness_eval"""),
    Program("Megatron-LM", False, "NVIDIA/Megatron-LM, its parser's options of 2026", """
        overlap_grad_reduce overlap_param_gather tp_comm_overlap use_distributed_optimizer use_megatron_fsdp
        data_parallel_sharding_strategy use_mcore_models transformer_impl attention_backend use_flash_attn
        recompute_(granularity method modules activations) disable_bias_linear group_query_attention data_cache_path
        ckpt_format ckpt_step async_save manual_gc mock_data num_layers_per_virtual_pipeline_stage
        decoder_first_pipeline_num_layers decoder_last_pipeline_num_layers expert_model_parallel_size
        moe_(router_load_balancing_type aux_loss_coeff z_loss_coeff grouped_gemm token_dispatcher_type
        ffn_hidden_size shared_expert_intermediate_size) multi_latent_attention q_lora_rank kv_lora_rank qk_head_dim
        v_head_dim kv_channels add_qkv_bias mtp_num_layers fp8_recipe distributed_timeout_minutes rampup_batch_size
        train_samples lr_decay_samples lr_warmup_samples lr_warmup_init decoupled_lr start_weight_decay
        end_weight_decay weight_decay_incr_style initial_loss_scale exit_duration_in_mins exit_signal_handler
        use_checkpoint_args no_initialization use_rotary_position_embeddings rotary_scaling_factor window_size
        softmax_type apply_layernorm_1p squared_relu quick_geglu no_masked_softmax_fusion
        no_gradient_accumulation_fusion no_persist_layer_norm optimizer_cpu_offload num_dataset_builder_threads
        dataloader_type tokenizer_model log_throughput timing_log_level tensorboard_queue_size"""),
    Program("Megatron-DeepSpeed", False, "microsoft/Megatron-DeepSpeed, megatron/arguments.py", """
        remote_device use_pin_memory scattered_embeddings split_transformers memory_centric_tiled_linear tile_factor
        num_layers_teacher num_experts_teacher hidden_size_teacher num_attention_heads_teacher mos kd_alpha_ce
        kd_beta_ce kd_temp reset_iteration load_teacher no_pipeline_parallel ds_inference ds_fused_adam
        ds_sequence_parallel_size force_ds_sequence_parallel create_moe_param_group moe_train_capacity_factor
        moe_eval_capacity_factor moe_min_capacity moe_loss_coeff use_tutel topk disable_moe_token_dropping
        enable_expert_tensor_parallelism train_tokens lr_decay_tokens lr_warmup_tokens universal_checkpoint
        use_flash_attn_v1 use_flash_attn_v2 use_flash_attn_triton custom_token_counting no_load_lr_state"""),
    Program("Hugging Face's Trainer", False, "transformers 5.23 and 4, TrainingArguments", """
        num_train_epochs lr_scheduler_kwargs optim optim_args optim_target_modules adam_epsilon
        average_tokens_across_devices label_smoothing_factor bf16_full_eval fp16_full_eval fp16_opt_level fp16_backend
        half_precision_backend tf32 activation_checkpointing_kwargs gradient_checkpointing_kwargs torch_compile
        torch_compile_backend torch_compile_mode torchdynamo use_liger_kernel liger_kernel_config
        neftune_noise_alpha torch_empty_cache_steps auto_find_batch_size logging_dir logging_strategy
        logging_first_step log_on_each_node logging_nan_inf_filter include_num_input_tokens_seen
        include_tokens_per_second log_level_replica disable_tqdm report_to run_name eval_strategy evaluation_strategy
        eval_delay eval_on_start eval_do_concat_batches eval_use_gather_object eval_accumulation_steps
        per_device_eval_batch_size per_gpu_train_batch_size per_gpu_eval_batch_size prediction_loss_only
        include_for_metrics include_inputs_for_metrics batch_eval_metrics save_only_model save_strategy
        save_on_each_node save_total_limit save_safetensors overwrite_output_dir push_to_hub hub_(token private_repo
        model_id strategy always_push revision) push_to_hub_model_id load_best_model_at_end metric_for_best_model
        greater_is_better ignore_data_skip restore_callback_states_from_checkpoint full_determinism data_seed use_cpu
        no_cuda use_mps_device jit_mode_eval use_ipex accelerator_config parallelism_config dataloader_num_workers
        dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor remove_unused_columns
        label_names group_by_length length_column_name ddp_find_unused_parameters ddp_bucket_cap_mb
        ddp_broadcast_buffers ddp_backend ddp_timeout fsdp fsdp_config fsdp_min_num_params
        fsdp_transformer_layer_cls_to_wrap sharded_ddp skip_memory_metrics do_eval do_predict
        resume_from_checkpoint trackio_space_id"""),
    Program("Hugging Face's models", False, "transformers 5.23, GPTNeoXConfig, GPT2Config, LlamaConfig", """
        architectures transformers_version vocab_size n_vocab tie_word_embeddings torch_dtype
        initializer_range hidden_dropout_prob
        attention_probs_dropout_prob embd_pdrop resid_pdrop attn_pdrop layer_norm_epsilon n_positions n_ctx n_inner
        activation_function use_parallel_residual partial_rotary_factor rotary_ndims attention_bias mlp_bias head_dim
        rope_scaling rope_parameters use_cache pretraining_tp bos_token_id eos_token_id pad_token_id
        classifier_dropout scale_attn_weights summary_type"""),
    Program("axolotl", False, "axolotl 0.19, axolotl/utils/schemas", """
        base_model base_model_config tokenizer_config model_revision revision_of_model trust_remote_code
        load_in_4bit load_in_8bit gptq adapter lora_r lora_alpha lora_dropout lora_target_modules lora_target_linear
        lora_modules_to_save lora_fan_in_fan_out lora_model_dir lora_on_cpu peft_use_dora peft_use_rslora
        loraplus_lr_ratio loraplus_lr_embedding relora datasets test_datasets pretraining_dataset
        dataset_prepared_path dataset_processes dataset_num_proc shuffle_merged_datasets val_set_size chat_template
        default_system_message train_on_inputs sample_packing eval_sample_packing pad_to_sequence_len
        sample_packing_bin_size max_packed_sequence_len lr_scheduler cosine_min_lr_ratio embedding_lr
        evals_per_epoch saves_per_epoch eval_table_size xformers_attention sdp_attention eager_attention
        flex_attention s2_attention flash_attn_cross_entropy flash_attn_rms_norm flash_attn_fuse_mlp
        attn_implementation sequence_parallel_degree context_parallel_size tensor_parallel_size dp_shard_size
        dp_replicate_size ring_attn_func heads_k_stride special_tokens early_stopping_patience loss_watchdog_threshold
        loss_watchdog_patience unfrozen_parameters wandb_entity wandb_mode wandb_watch wandb_log_model
        wandb_run_id mlflow_tracking_uri mlflow_experiment_name mlflow_run_name hf_use_auth_token
        push_dataset_to_hub type_of_model trainer_cls is_llama_derived_model overrides_of_model_config
        resize_token_embeddings_to_32x fix_untrained_tokens gc_steps gradio_title dpo_loss_type rl rl_beta
        simpo_gamma orpo_alpha"""),
    Program("LLaMA-Factory and the alignment handbook", False, "their recipes", """
        model_name_or_path finetuning_type template cutoff_len dataset dataset_dir lora_target quantization_bit
        max_samples overwrite_cache preprocessing_num_workers plot_loss pref_beta pref_loss dataset_mixture
        dataset_mixer dataset_splits"""),
    Program("torchtitan", False, "torchtitan 0.3, torchtitan/config/configs.py", """
        local_batch_size max_norm mixed_precision_param mixed_precision_reduce enable_cpu_offload gc_freq gc_debug
        data_parallel_replicate_degree data_parallel_shard_degree context_parallel_degree expert_parallel_degree
        fsdp_reshard_after_forward enable_sequence_parallel enable_async_tensor_parallel
        pipeline_parallel_(schedule layers_per_stage microbatch_size schedule_csv first_stage_less_layers
        last_stage_less_layers) module_fqns_per_model_part init_timeout_seconds train_timeout_seconds trace_buf_size
        save_traces_folder"""),
)  # fmt: skip

EVALUATED = "evaluation takes train_micro_batch_size_per_gpu samples at once too: leave it out"
HEADS = "each head is hidden_size / num_attention_heads wide"
TIED = "no_weight_tying says the opposite: false ties them"
VOCABULARY = "the tokenizer says how many tokens there are, and make_vocab_size_divisible_by pads them: leave it out"
#: What says the same here: a parameter, or a sentence.
INSTEAD = {
    "activation_function": "activation",
    "adapter": "adapters are not trained here",
    "attention_head_type": "num_kv_heads says it here, and 1 is multi-query attention",
    "attention_probs_dropout_prob": "attention_dropout",
    "attn_pdrop": "attention_dropout",
    "data_parallel_shard_degree": "zero_optimization.stage",
    "data_parallel_sharding_strategy": "zero_optimization.stage",
    "datasets": "data_path",
    "deepspeed_config": "DeepSpeed's own keys stand at the top here, such as zero_optimization: {stage: 2}",
    "deepspeed_config_file": "`deepy migrate` makes a YAML of that file, to be named beside this one",
    "deepspeed_enable_comms_logging": "comms_logger.enabled",
    "disable_bias_linear": "use_bias_in_mlp: false and use_bias_in_attn_linear: false say it here",
    "ds_sequence_parallel_size": "sequence_parallel_size",
    "eff_batch_size": "train_batch_size",
    "embd_pdrop": "hidden_dropout",
    "enable_cpu_offload": "zero_optimization.offload_optimizer: {device: cpu} says it here",
    "enable_sequence_parallel": "sequence_parallel",
    "eval_strategy": "eval_interval",
    "eval_batch_size": EVALUATED,
    "evaluation_strategy": "eval_interval",
    "fp16_opt_level": "amp.opt_level",
    "fsdp": "zero_optimization.stage",
    "fsdp_config": "zero_optimization.stage",
    "group_query_attention": "num_kv_heads",
    "head_dim": HEADS,
    "hidden_dropout_prob": "hidden_dropout",
    "initial_loss_scale": "here fp16.initial_scale_power is its logarithm to base 2",
    "kv_channels": HEADS,
    "layer_norm_epsilon": "layernorm_epsilon",
    "load_iteration": "iteration",
    "local_batch_size": "train_micro_batch_size_per_gpu",
    "logging_dir": "tensorboard_dir",
    "lora_alpha": "adapters are not trained here",
    "lora_r": "adapters are not trained here",
    "max_seqlen": "seq_length",
    "lora_target_modules": "adapters are not trained here",
    "lr_decay_samples": "here lr_decay_iters counts steps, not samples",
    "lr_scheduler": "lr_decay_style",
    "lr_warmup_samples": "here warmup is a share of all steps",
    "make_gated_mlp_multiple_of": "mlp_multiple_of",
    "max_norm": "gradient_clipping",
    "mixed_precision_param": "precision",
    "model_name_or_path": "`deepy import` makes a checkpoint of a Hugging Face folder, which load names",
    "n_ctx": "max_position_embeddings",
    "n_inner": "intermediate_size",
    "no_cuda": "set DS_ACCELERATOR=cpu in the environment",
    "no_masked_softmax_fusion": "scaled_upper_triang_masked_softmax_fusion: false says it here",
    "no_pipeline_parallel": "pipe_parallel_size: 0 says it here",
    "operator_config": "attention_config",
    "optimizer_cpu_offload": "zero_optimization.offload_optimizer: {device: cpu} says it here",
    "per_device_eval_batch_size": EVALUATED,
    "profiler_type": "profile",
    "rampup_batch_size": "the batch has one size for the whole run",
    "recompute_activations": "checkpoint_activations",
    "recompute_granularity": "checkpoint_activations",
    "recompute_method": "checkpoint_activations",
    "report_to": "use_wandb, use_comet and tensorboard_dir say it here",
    "resid_pdrop": "hidden_dropout",
    "run_name": "wandb_run_name",
    "save_strategy": "checkpoint_factor",
    "sequence_parallel_degree": "sequence_parallel_size",
    "should_profile": "profile",
    "tensor_parallel_size": "model_parallel_size",
    "tie_embeddings": TIED,
    "tie_word_embeddings": TIED,
    "tokenizer_model": "vocab_file",
    "topk": "moe_top_k",
    "torch_dtype": "precision",
    "train_samples": "here train_iters counts steps, not samples",
    "use_cpu": "set DS_ACCELERATOR=cpu in the environment",
    "use_distributed_optimizer": "zero_stage: 1 says it here",
    "use_flash_attn": "attention_config",
    "use_megatron_fsdp": "zero_stage: 3 says it here",
    "use_parallel_residual": "gpt_j_residual",
    "use_rotary_position_embeddings": "pos_emb: rotary says it here",
    "val_set_size": "split",
    "vocab_size": VOCABULARY,
    "n_vocab": VOCABULARY,
    "window_size": "sliding_window_width",
    "zero3_save_16bit_model": "zero_optimization.stage3_gather_16bit_weights_on_model_save",
    "zero_leaf_modules": "zero_optimization.leaf_module.names",
    "zero_use_leaf_modules": "zero_optimization.leaf_module.names",
}
