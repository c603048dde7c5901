"""Tables for `--emit megatron`: Megatron-LM's names of values, and the parameters and values it has flags for."""

from __future__ import annotations

from typing import Any

#: Parameters that the functions in `megatron.TRANSLATIONS` translate.
TRANSLATED = {
    "model_parallel_size", "pipe_parallel_size", "context_parallel_style", "intermediate_size", "num_kv_heads",
    "pos_emb", "norm", "layernorm_epsilon", "rms_norm_epsilon", "scaled_upper_triang_masked_softmax_fusion",
    "scaled_masked_softmax_fusion", "bias_gelu_fusion", "moe_num_experts", "moe_expert_interval", "moe_top_k",
    "moe_router_type", "moe_normalize_expert_weights", "moe_token_dropping", "moe_train_capacity_factor",
    "moe_eval_capacity_factor", "moe_num_shared_experts", "loss_average",
    "loss_scale", "loss_scale_window", "min_scale", "hysteresis", "optimizer_type", "clip_grad",
    "checkpoint_num_layers", "partition_activations", "train_data_paths", "valid_data_paths", "test_data_paths",
    "split", "tokenizer_type", "vocab_file", "merge_file", "wandb_project", "wandb_run_name", "wandb_team",
    "local_rank", "te_fp8_format", "adam_beta1", "adam_beta2", "sliding_window_width",
    "attention_backend", "window_attn_skip_freq", "batch_size_schedule", "rope_scaling.rope_type",
    "rope_scaling.factor", "rope_scaling.original_max_position_embeddings", "rope_scaling.mscale",
    "rope_scaling.mscale_all_dim", "max_position_embeddings",
}  # fmt: skip
#: Parameters that Megatron-LM has in samples if the length of the run is in samples.
IN_ITERATIONS = ("train_iters", "lr_decay_iters", "lr_wsd_decay_iters")
POSITIONS = {"learned": "learned_absolute", "rotary": "rope", "rpe": "relative", "none": "none"}
#: Value of --position-embedding-type for rotary embeddings with scaled frequencies, and the `rope_type`.
YARN = "yarn"
NORMS = {"layernorm": "LayerNorm", "te_layernorm": "LayerNorm", "rmsnorm": "RMSNorm", "te_rmsnorm": "RMSNorm"}
TOKENIZERS = {
    "GPT2BPETokenizer": "GPT2BPETokenizer",
    "HFTokenizer": "HuggingFaceTokenizer",
    "HFGPT2Tokenizer": "HuggingFaceTokenizer",
    "SPMTokenizer": "SentencePieceTokenizer",
    "ByteLevelTokenizer": "NullTokenizer",
}
#: `context_parallel_style` -> --cp-comm-type.
CONTEXT_STYLES = {"all_to_all": "a2a", "ring": "p2p", "hybrid": "a2a+p2p"}
#: The original context of `--use-rope-scaling`, that of Llama 3.
LLAMA3_CONTEXT = 8192
#: The default betas of Lion in DeepSpeed and in this package; Megatron-LM has other defaults.
LION = (0.9, 0.99)
OPTIMIZERS = {
    "adam": "adam", "adamw": "adam", "cpu_adam": "adam", "cpu_torch_adam": "adam", "sgd": "sgd", "lion": "lion",
    "muon": "muon",
}  # fmt: skip
#: `adjust_lr_fn` of Muon -> --muon-scale-mode, and what its factor is to be multiplied by.
MUON_SCALES = {
    "original": ("shape_scaling", 1.0), "spectral": ("spectral", 1.0), "unit_rms_norm": ("unit_rms_norm", 1.0),
    "match_rms_adamw": ("spectral", 0.2),
}  # fmt: skip
#: Parameter -> the values that Megatron-LM supports. `megatron_unsupported` adds deepy's own parameters of the model.
SUPPORTED_VALUES: dict[str, tuple[Any, ...]] = {
    "activation": ("gelu", "swiglu"),
    "pos_emb": tuple(POSITIONS),
    "norm": tuple(NORMS),
    "tokenizer_type": tuple(TOKENIZERS),
    "optimizer.type": tuple(OPTIMIZERS),
    "zero_optimization.stage": (0, 1, 2, 3),
    "zero_optimization.offload_param.device": ("none",),
    "zero_optimization.offload_optimizer.device": ("none", "cpu"),
    "scheduler.type": (None,),
    "lr_decay_style": ("constant", "linear", "cosine", "inverse-square-root", "WSD"),
    "lr_schedule": (None,),
    "seq_length_schedule": (None,),
    "init_method": ("normal", "xavier_uniform"),
    "output_layer_init_method": ("scaled_normal", "xavier_uniform"),
    "z_loss": (0.0,),
    "rms_norm_epsilon_under_root": (True,),
    "rope_scaling.rope_type": ("default", "linear", "llama3", YARN),
    "rope_scaling.attention_factor": (None,),
    "rope_scaling.low_freq_factor": (1.0,),
    "rope_scaling.high_freq_factor": (4.0,),
    "lora.rank": (0,),
    "gpt_j_residual": (False,),
    "gpt_j_tied": (False,),
    "num_unique_layers": (None,),
    "opt_pos_emb_offset": (0,),
    "soft_prompt_tuning.enabled": (False,),
    "train_impl": ("normal",),
    "dataset_impl": ("gpt2",),
    "distributed_backend": ("nccl", "gloo"),
    "weight_by_num_documents": (False,),
    "use_bnb_optimizer": (False,),
    "amp.enabled": (False,),
}
#: Parameters without a flag of their own, whose values are part of other flags.
SENT_OTHERWISE = {
    "optimizer.params.lr", "optimizer.params.betas", "optimizer.params.eps", "optimizer.params.weight_decay",
    "optimizer.params.momentum", "optimizer.params.nesterov", "optimizer.params.ns_steps",
    "optimizer.params.adjust_lr_fn", "optimizer.params.extra_scale_factor", "optimizer.params.split_qkv",
    "fp16.enabled", "fp16.loss_scale", "fp16.loss_scale_window", "fp16.hysteresis", "fp16.min_loss_scale",
    "fp16.initial_scale_power", "bf16.enabled", "precision", "zero_stage", "gradient_accumulation_steps",
    "gradient_clipping", "checkpoint_activations", "attention_config", "use_bias_in_mlp", "use_bias_in_attn_linear",
    "use_bias_in_norms", "mlp_type", "expansion_factor", "mlp_multiple_of", "train_data_weights",
    "valid_data_weights", "test_data_weights", "log_grad_pct_zeros", "use_wandb", "checkpoint_scale",
    "extra_save_iters", "text_path", "data_impl", "mmap_warmup", "dialect", "use_shared_fs", "config_files",
    "user_script", "git_hash", "softmax_over_padding", "exact_mlp_width", "warmup_from_zero", "sample_order",
    "repeat_eval_samples",
}  # fmt: skip
