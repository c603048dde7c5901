"""What NVIDIA Megatron-LM has no flag for: refused where it would be another run, told where it is only left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from neoxargs.launch.targets.megatron import NORMS, OPTIMIZERS, POSITIONS, TOKENIZERS, TRANSLATED
from neoxargs.problems import Problem, listed
from neoxargs.registry import ABSENT, Parameter
from neoxargs.resolve.config import Config
from neoxargs.resolve.rules.synonyms import yaml_form


def inexpressible(config: Config) -> list[Problem]:
    """One problem for every setting that no flag says."""
    problems = []
    for name, values in EXPRESSIBLE.items():
        value = config.get(name)
        if value not in values and not (isinstance(value, str) and value.lower() in values):
            known = [yaml_form(choice) for choice in values if choice is not None]
            hint = f"it knows {listed(known)}" if known else f"leave {name} out"
            what = f"Megatron-LM has no flag for {name} ({yaml_form(value)})"
            problems.append(Problem(what, config.place(name), hint, id="megatron-not-expressible", about=(name,)))
    return [*problems, *_other_layers(config), *_half_a_bias(config), *_half_a_norm(config), *_rhythm(config)]


def untold(config: Config) -> list[Problem]:
    """A warning for every other setting that somebody wrote and no flag says."""
    written = [p for p, value in config.items() if value.source.written and value.value not in (None, ABSENT)]
    return [_untold(parameter, config) for parameter in written if not _is_said(parameter, config)]


def _is_said(parameter: Parameter, config: Config) -> bool:
    """By a flag of its own or of what it is derived into, or by being Megatron-LM's way of doing it."""
    if parameter.megatron or parameter.replaced_by or parameter.name in (*TRANSLATED, *EXPRESSIBLE, *OTHERWISE):
        return True
    if parameter.effect in ("none", "config", "launcher", "generation") or "DSL" in parameter.origins:
        return True
    return bool(config.get(parameter.name) == parameter.default and parameter.effect not in ("model", "schedule"))


def _untold(parameter: Parameter, config: Config) -> Problem:
    what = f"Megatron-LM has no flag for {parameter.name} ({yaml_form(config.get(parameter.name))}), which is left out"
    hint = "it is a setting of DeepSpeed's engine" if parameter.effect == "engine" else ""
    place, about = config.place(parameter.name), (parameter.name,)
    return Problem(what, place, hint, severity="warning", id="megatron-setting-left-out", about=about)


#: Parameters that several flags say together, or that are said by another one.
OTHERWISE = {
    "optimizer.params.lr", "optimizer.params.betas", "optimizer.params.eps", "optimizer.params.weight_decay",
    "optimizer.params.momentum", "fp16.enabled", "fp16.loss_scale", "fp16.loss_scale_window", "fp16.hysteresis",
    "fp16.min_loss_scale", "fp16.initial_scale_power", "bf16.enabled", "precision", "zero_stage",
    "gradient_accumulation_steps", "gradient_clipping", "checkpoint_activations", "attention_config",
    "use_bias_in_mlp", "use_bias_in_attn_linear", "use_bias_in_norms", "mlp_type", "expansion_factor",
    "mlp_multiple_of", "train_data_weights", "valid_data_weights", "test_data_weights", "log_grad_pct_zeros",
    "use_wandb", "checkpoint_scale", "extra_save_iters", "text_path", "data_impl", "mmap_warmup", "dialect",
    "use_shared_fs", "config_files", "user_script", "git_hash",
}  # fmt: skip


def _other_layers(config: Config) -> Iterator[Problem]:
    other = sorted(set(config.attention.attention_config) - {"global", "flash"})
    if other:
        what = f"Megatron-LM has no flag for attention_config ({listed(other, 'and')})"
        yield Problem(
            what, config.place("attention_config"), id="megatron-not-expressible", about=("attention_config",)
        )


def _half_a_bias(config: Config) -> Iterator[Problem]:
    if config.mlp.use_bias_in_mlp != config.attention.use_bias_in_attn_linear:
        where = config.place("use_bias_in_mlp") or config.place("use_bias_in_attn_linear")
        about = ("use_bias_in_mlp", "use_bias_in_attn_linear")
        yield Problem(
            "Megatron-LM has biases in all linear layers or in none", where, id="megatron-not-expressible", about=about
        )


def _half_a_norm(config: Config) -> Iterator[Problem]:
    if NORMS.get(config.norm.norm) == "LayerNorm" and not config.norm.use_bias_in_norms:
        what = "Megatron-LM's LayerNorm always has a bias, unlike use_bias_in_norms (false)"
        yield Problem(
            what, config.place("use_bias_in_norms"), id="megatron-not-expressible", about=("use_bias_in_norms",)
        )
    if (config.init.init_method == "xavier_uniform") != (config.init.output_layer_init_method == "xavier_uniform"):
        where = config.place("init_method") or config.place("output_layer_init_method")
        about = ("init_method", "output_layer_init_method")
        yield Problem(
            "Megatron-LM draws all weights from xavier_uniform or none",
            where,
            id="megatron-not-expressible",
            about=about,
        )


def _rhythm(config: Config) -> Iterator[Problem]:
    checkpoint = config.checkpoint
    if checkpoint.save and (checkpoint.checkpoint_scale != "linear" or checkpoint.extra_save_iters):
        where = config.place("checkpoint_scale") or config.place("extra_save_iters")
        what, about = "Megatron-LM saves checkpoints only at equal intervals", ("checkpoint_scale", "extra_save_iters")
        yield Problem(what, where, "write checkpoint_factor alone", id="megatron-not-expressible", about=about)


#: Parameter -> the values that flags exist for.
EXPRESSIBLE: dict[str, tuple[Any, ...]] = {
    "activation": ("gelu", "swiglu"),
    "pos_emb": tuple(POSITIONS),
    "norm": tuple(NORMS),
    "tokenizer_type": tuple(TOKENIZERS),
    "optimizer.type": tuple(OPTIMIZERS),
    "zero_optimization.stage": (0, 1, 2, 3),
    "zero_optimization.offload_param.device": ("none",),
    "zero_optimization.offload_optimizer.device": ("none", "cpu"),
    "scheduler.type": (None,),
    "lr_decay_style": ("constant", "linear", "cosine"),
    "init_method": ("normal", "xavier_uniform"),
    "output_layer_init_method": ("scaled_normal", "xavier_uniform"),
    "z_loss": (0.0,),
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
