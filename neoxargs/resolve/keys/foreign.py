"""What other programs call our parameters: for people who write those names here."""

from __future__ import annotations

from functools import cache
from typing import Any

from neoxargs.registry import REGISTRY, normal

#: Names of Hugging Face (configurations and Trainer), torchtitan, axolotl and of Megatron-LM's own past.
ELSEWHERE = {
    "num_hidden_layers": "num_layers", "n_layer": "num_layers", "n_layers": "num_layers", "n_embd": "hidden_size",
    "n_head": "num_attention_heads", "n_heads": "num_attention_heads", "dim": "hidden_size",
    "num_key_value_heads": "num_kv_heads", "n_kv_heads": "num_kv_heads", "rope_theta": "rotary_emb_base",
    "rms_norm_eps": "rms_norm_epsilon", "layer_norm_eps": "layernorm_epsilon", "hidden_act": "activation",
    "sliding_window": "sliding_window_width", "seq_len": "seq_length",
    "sequence_len": "seq_length", "max_steps": "train_iters", "steps": "train_iters", "learning_rate": "lr",
    "max_grad_norm": "gradient_clipping", "gradient_clip_val": "gradient_clipping", "micro_batch_size":
    "train_micro_batch_size_per_gpu", "per_device_train_batch_size": "train_micro_batch_size_per_gpu",
    "global_batch_size": "train_batch_size", "tensor_parallel_degree": "model_parallel_size",
    "pipeline_parallel_degree": "pipe_parallel_size", "warmup_iters": "warmup", "warmup_steps": "warmup",
    "warmup_ratio": "warmup", "lr_warmup_iters": "warmup", "lr_scheduler_type": "lr_decay_style",
    "gradient_checkpointing": "checkpoint_activations", "output_dir": "save", "save_steps": "checkpoint_factor",
    "num_heads": "num_attention_heads", "kv_heads": "num_kv_heads", "num_query_groups": "num_kv_heads",
    "qk_norm": "use_qk_layernorm", "use_qk_norm": "use_qk_layernorm", "attention_bias": "use_bias_in_attn_linear",
    "mlp_bias": "use_bias_in_mlp", "initializer_range": "init_method_std", "n_positions": "max_position_embeddings",
    "adam_epsilon": "optimizer.params.eps", "optim": "optimizer.type", "num_train_epochs": "train_epochs",
    "n_epochs": "train_epochs", "epochs": "train_epochs", "resume_from_checkpoint": "load",
    "save_total_limit": "keep_last_n_checkpoints",
    "dataloader_num_workers": "num_workers", "mixed_precision": "precision",
    "num_processes": "num_gpus", "num_machines": "num_nodes", "main_process_port": "master_port",
    "main_process_ip": "master_addr", "offload_optimizer_device": "zero_optimization.offload_optimizer.device",
    "offload_param_device": "zero_optimization.offload_param.device", "nproc_per_node": "num_gpus", "nnodes":
    "num_nodes", "wandb_name": "wandb_run_name", "wandb_entity": "wandb_team", "project_name": "wandb_project",
    "rope_percentage": "rotary_pct", "rotary_base": "rotary_emb_base", "rope_pct": "rotary_pct",
    "partial_rotary_factor": "rotary_pct", "ffn_hidden_size": "intermediate_size",
    "logging_steps": "log_interval", "eval_steps": "eval_interval", "attention_type": "attention_config",
    "use_flash_attention": "attention_config", "flash_attention": "attention_config", "swiglu": "activation",
    "d_model": "hidden_size", "d_ff": "intermediate_size", "max_seq_len": "seq_length", "max_seq_length": "seq_length",
    "max_length": "seq_length", "sequence_length": "seq_length", "context_length": "seq_length", "block_size":
    "seq_length", "dtype": "precision", "batch_size_per_device": "train_micro_batch_size_per_gpu",
    "gradient_accumulation": "gradient_accumulation_steps", "accumulate_grad_batches": "gradient_accumulation_steps",
    "grad_accum_steps": "gradient_accumulation_steps", "grad_clip": "gradient_clipping", "clip_grad_norm":
    "gradient_clipping", "train_steps": "train_iters", "total_steps": "train_iters", "num_steps": "train_iters",
    "max_iters": "train_iters", "num_epochs": "train_epochs", "lr_schedule": "lr_decay_style", "log_steps":
    "log_interval", "log_every_n_steps": "log_interval", "log_freq": "log_interval", "checkpoint_dir": "save",
    "save_dir": "save", "num_experts_per_tok": "moe_top_k", "dropout": "hidden_dropout",
    "beta1": "optimizer.params.betas", "beta2": "optimizer.params.betas", "epsilon": "optimizer.params.eps",
    "opt_name": "optimizer.type",
    "embed_dropout": "hidden_dropout", "res_dropout": "hidden_dropout", "attn_dropout": "attention_dropout",
    "lr_decay": "lr_decay_style", "end_lr": "min_lr", "seq": "seq_length", "pe": "pos_emb", "layers": "num_layers",
    "per_replica_batch": "train_micro_batch_size_per_gpu", "anneal_steps": "lr_decay_iters", "val_every":
    "eval_interval", "val_batches": "eval_iters", "ckpt_every": "checkpoint_factor", "recompute_grad":
    "checkpoint_activations", "mlp_activation": "activation",
}  # fmt: skip
#: And what they call the choices of ours.
CHOICES = {
    "rope": "rotary", "rms_norm": "rmsnorm", "layer_norm": "layernorm", "relative": "rpe", "absolute": "learned",
    "layernorm_nonparam": "non_parametric_layernorm", "linear_with_warmup": "linear", "constant_with_warmup":
    "constant",
    "cosine_with_warmup": "cosine", "bf16-mixed": "bfloat16", "16-mixed": "fp16",
    "swish": "silu", "flash_rmsnorm": "rmsnorm", "llamatokenizer": "spmtokenizer",
    "llama2tokenizer": "spmtokenizer", "hfllamatokenizer": "hftokenizer", "pretrainedfromhf": "hftokenizer",
    "sentencepiecetokenizer": "spmtokenizer", "huggingfacetokenizer": "hftokenizer", "llama3hftokenizer": "hftokenizer",
}  # fmt: skip
#: Values that a parameter has elsewhere and cannot have here, and what to write.
VALUES: dict[tuple[str, Any], str] = {
    ("fp16.loss_scale", "dynamic"): "write 0, which scales dynamically",
    ("loss_scale", "dynamic"): "write 0, which scales dynamically",
    ("activation", "relu2"): "the square of ReLU is not among them",
    ("launcher", "jsrun"): "DeepSpeed has no launcher for jsrun: a plugin can add one (docs/extending.md)",
    ("mlp_type", "gated"): "activation: swiglu (or geglu, reglu, bilinear) gates the MLP",
    ("lr_decay_style", "wsd"): "it is not built: constant has the plateau without the decay, linear and cosine the "
    "decay without the plateau",
    ("lr_decay_style", "inverse-square-root"): "it is not built: exponential too falls fast first, then slowly",
}


def ours(name: str) -> str | None:
    """The parameter that another program's top-level name means."""
    return ELSEWHERE.get(name) or _by_flag().get(name)


@cache
def _by_flag() -> dict[str, str]:
    """Megatron-LM's flags, where they say the same and not the opposite."""
    flags = {
        normal(p.megatron): p.name for p in reversed(REGISTRY.parameters.values()) if p.megatron and not p.replaced_by
    }
    return {flag: name for flag, name in flags.items() if not flag.startswith("!")}


def said_elsewhere(name: str, value: Any) -> str:
    """What to write for a value that does not fit, where people are known to write it."""
    if name == "warmup" and isinstance(value, int | float) and value > 1:
        return f"it is a share of the iterations, not their number: write {value} divided by train_iters"
    if name == "deepspeed" and isinstance(value, str):
        return f"it is a switch here; `deepy migrate {value}` makes a YAML of the file, to be named beside this one"
    return VALUES.get((name, value.lower() if isinstance(value, str) else value), "")
