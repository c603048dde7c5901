"""What other programs call our parameters: for people who write those names here."""

from __future__ import annotations

from functools import cache

from neoxargs.registry import REGISTRY, normal

#: Names of Hugging Face (configurations and Trainer), torchtitan, axolotl and of Megatron-LM's own past.
ELSEWHERE = {
    "num_hidden_layers": "num_layers", "n_layer": "num_layers", "n_layers": "num_layers", "n_embd": "hidden_size",
    "n_head": "num_attention_heads", "n_heads": "num_attention_heads", "dim": "hidden_size",
    "num_key_value_heads": "num_kv_heads", "n_kv_heads": "num_kv_heads", "rope_theta": "rotary_emb_base",
    "rms_norm_eps": "rms_norm_epsilon", "layer_norm_eps": "layernorm_epsilon", "hidden_act": "activation",
    "sliding_window": "sliding_window_width", "tie_word_embeddings": "no_weight_tying", "seq_len": "seq_length",
    "sequence_len": "seq_length", "max_steps": "train_iters", "steps": "train_iters", "learning_rate": "lr",
    "max_grad_norm": "gradient_clipping", "gradient_clip_val": "gradient_clipping", "micro_batch_size":
    "train_micro_batch_size_per_gpu", "per_device_train_batch_size": "train_micro_batch_size_per_gpu",
    "global_batch_size": "train_batch_size", "tensor_parallel_degree": "model_parallel_size",
    "pipeline_parallel_degree": "pipe_parallel_size", "warmup_iters": "warmup", "warmup_steps": "warmup",
    "warmup_ratio": "warmup", "lr_warmup_iters": "warmup", "lr_scheduler_type": "lr_decay_style",
    "gradient_checkpointing": "checkpoint_activations", "output_dir": "save", "save_steps": "checkpoint_factor",
    "logging_steps": "log_interval", "eval_steps": "eval_interval", "attention_type": "attention_config",
    "use_flash_attention": "attention_config", "flash_attention": "attention_config", "swiglu": "activation",
}  # fmt: skip
#: And what they call the choices of ours.
CHOICES = {"rope": "rotary", "rms_norm": "rmsnorm", "layer_norm": "layernorm", "relative": "rpe", "absolute": "learned"}


def ours(name: str) -> str | None:
    """The parameter that another program's top-level name means."""
    return ELSEWHERE.get(name) or _by_flag().get(name)


@cache
def _by_flag() -> dict[str, str]:
    """Megatron-LM's flags, where they say the same and not the opposite."""
    flags = {normal(p.megatron): p.name for p in reversed(REGISTRY.parameters.values()) if p.megatron and not p.becomes}
    return {flag: name for flag, name in flags.items() if not flag.startswith("!")}
