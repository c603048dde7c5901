"""Settings without a flag in NVIDIA Megatron-LM: an error if the run would differ, a warning otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from neoxargs.base.problems import Problem, listed
from neoxargs.config.config import Config
from neoxargs.facts.batch_sizes import PHASES, RAMP, BatchSizes
from neoxargs.facts.weight_decay import WeightDecay
from neoxargs.registry import ABSENT, REGISTRY, Parameter
from neoxargs.resolve.compare.continuing import level_of
from neoxargs.resolve.effects.unread import unread_by_run
from neoxargs.resolve.rules.synonyms import yaml_form
from neoxargs.targets.megatron_tables import (
    LLAMA3_CONTEXT,
    NORMS,
    SENT_OTHERWISE,
    SUPPORTED_VALUES,
    TRANSLATED,
    YARN,
)


def unsupported(config: Config) -> list[Problem]:
    """Return a problem for each setting that Megatron-LM does not support and without which the run would differ."""
    checks = (
        _unsupported_values,
        _other_attention,
        _biases_in_part,
        _rope_context,
        _norm_without_bias,
        _mixed_init,
        _save_intervals,
        _ramp,
        _falling_weight_decay,
        _capacities,
    )
    return [problem for check in checks for problem in check(config)]


def _ramp(config: Config) -> Iterator[Problem]:
    sizes = BatchSizes.of(config.get)
    if sizes.changes and config.training.train_samples is None:
        name = PHASES if config.get(PHASES) else RAMP
        what = f"with {name}, Megatron-LM counts the run and the learning rate schedule in samples, not in iterations"
        samples = sizes.samples_after(config.training.train_iters)
        hint = f"set train_samples: {samples} in place of train_iters, with which train.py counts in the same way"
        yield _refusal(config, what, name, "train_iters", hint=hint)


def _falling_weight_decay(config: Config) -> Iterator[Problem]:
    decay = WeightDecay.of(config.get)
    if decay.end < decay.start:
        names = "start_weight_decay", "end_weight_decay"
        yield _refusal(
            config, f"Megatron-LM's weight decay can only rise, not from {decay.start:g} to {decay.end:g}", *names
        )


def _capacities(config: Config) -> Iterator[Problem]:
    moe, names = config.moe, ("moe_eval_capacity_factor", "moe_train_capacity_factor")
    if moe.moe_num_experts > 1 and moe.moe_token_dropping and len({*map(config.get, names)}) > 1:
        what = f"moe_train_capacity_factor ({moe.moe_train_capacity_factor:g}) and moe_eval_capacity_factor "
        what += f"({moe.moe_eval_capacity_factor:g}) differ, but Megatron-LM has one capacity for both"
        yield _refusal(config, what, *names, hint="set both to the same value")


def dropped_settings(config: Config) -> list[Problem]:
    """Return a warning for every other setting that is set and has no flag."""
    written = [p for p, value in config.items() if value.source.set_by_user and value.value not in (None, ABSENT)]
    return [_dropped(parameter, config) for parameter in written if not _is_sent(parameter, config)]


@cache
def _only_default() -> dict[str, tuple[Any, ...]]:
    """Return deepy's own parameters that change what the weights of a model compute -> the default.

    Not those of sections, of which another key says whether they are read.
    """
    own = (p for p in REGISTRY.parameters.values() if p.ours and not p.megatron and p.attribute == p.name)
    names = {p.name: p.default for p in own if level_of(p) in ("weights", "adapted") and p.default is not ABSENT}
    return {name: (default,) for name, default in names.items() if name not in (*TRANSLATED, *SENT_OTHERWISE)}


def _is_sent(parameter: Parameter, config: Config) -> bool:
    """Return whether a flag has the value, directly or through a derived parameter, or Megatron-LM needs none."""
    carried = parameter.name in (*TRANSLATED, *SUPPORTED_VALUES, *_only_default(), *SENT_OTHERWISE)
    if carried or parameter.megatron or parameter.replaced_by:
        return True
    if parameter.effect in ("none", "config", "launcher", "generation") or "DSL" in parameter.origins:
        return True
    # For the model and the schedule, Megatron-LM's default can be a different one.
    return bool(config.get(parameter.name) == parameter.default and parameter.effect not in ("model", "schedule"))


def _dropped(parameter: Parameter, config: Config) -> Problem:
    name = parameter.name
    what = f"Megatron-LM has no flag for {name} ({yaml_form(config.get(name))}), so the setting is left out"
    hint = (
        f"{name} configures DeepSpeed's engine, which Megatron-LM does not use" if parameter.effect == "engine" else ""
    )
    return Problem(what, config.place(name), hint, severity="warning", id="megatron-setting-left-out", about=(name,))


def _refusal(config: Config, what: str, *about: str, hint: str = "") -> Problem:
    """Return a problem that points at the first of the parameters `about` that is set."""
    places = (place for name in about if (place := config.place(name)))
    return Problem(what, next(places, None), hint, id="megatron-not-expressible", about=about)


def _unsupported_values(config: Config) -> Iterator[Problem]:
    is_unread = unread_by_run(config)
    own = {name: values for name, values in _only_default().items() if not is_unread(name)}
    for name, values in (SUPPORTED_VALUES | own).items():
        value = config.get(name)
        if value not in values and not (isinstance(value, str) and value.lower() in values):
            choices = [yaml_form(choice) for choice in values if choice is not None]
            hint = f"set {name} to {listed(choices)}" if choices else f"remove {name}"
            yield _refusal(config, f"Megatron-LM does not support {name} ({yaml_form(value)})", name, hint=hint)


def _other_attention(config: Config) -> Iterator[Problem]:
    other = sorted(set(config.attention.attention_config) - {"global", "flash"})
    if other:
        what = f"Megatron-LM does not support attention_config ({listed(other, 'and')})"
        yield _refusal(config, what, "attention_config", hint="use only global and flash layers in attention_config")


def _biases_in_part(config: Config) -> Iterator[Problem]:
    if config.mlp.use_bias_in_mlp != config.attention.use_bias_in_attn_linear:
        mlp, attention = config.mlp.use_bias_in_mlp, config.attention.use_bias_in_attn_linear
        what = f"use_bias_in_mlp ({yaml_form(mlp)}) and use_bias_in_attn_linear ({yaml_form(attention)}) differ,"
        what += " but Megatron-LM has biases in all linear layers or in none"
        yield _refusal(config, what, "use_bias_in_mlp", "use_bias_in_attn_linear", hint="set both to the same value")


def _rope_context(config: Config) -> Iterator[Problem]:
    options = config.rope_scaling
    context = options.original_max_position_embeddings or config.shape.max_position_embeddings
    if options.rope_type == "llama3" and context != LLAMA3_CONTEXT:
        what = f"Megatron-LM supports rope_type llama3 only for an original context of {LLAMA3_CONTEXT} tokens,"
        what += f" not {context}"
        name = "rope_scaling.original_max_position_embeddings"
        yield _refusal(config, what, name, hint=f"set {name} to {LLAMA3_CONTEXT}")
    if options.rope_type == "linear" and not float(options.factor or 0).is_integer():
        what = f"Megatron-LM supports only whole numbers for rope_scaling.factor, not {options.factor}"
        yield _refusal(config, what, "rope_scaling.factor", hint="set rope_scaling.factor to a whole number")
    if options.rope_type == YARN and config.embedding.rotary_pct != 1:
        what = f"Megatron-LM does not support rotary_pct ({config.embedding.rotary_pct:g}) with rope_type {YARN}"
        yield _refusal(config, what, "rotary_pct", "rope_scaling.rope_type", hint="set rotary_pct to 1")


def _norm_without_bias(config: Config) -> Iterator[Problem]:
    if NORMS.get(config.norm.norm) == "LayerNorm" and not config.norm.use_bias_in_norms:
        what = "use_bias_in_norms (false) is not supported: Megatron-LM's LayerNorm always has a bias"
        yield _refusal(config, what, "use_bias_in_norms", hint="set use_bias_in_norms: true")


def _mixed_init(config: Config) -> Iterator[Problem]:
    first, output = config.init.init_method, config.init.output_layer_init_method
    if (first == "xavier_uniform") != (output == "xavier_uniform"):
        what = f"init_method ({first}) and output_layer_init_method ({output}) differ, "
        what += "but Megatron-LM initialises either all weights or none with xavier_uniform"
        hint = "set init_method and output_layer_init_method both to xavier_uniform, or neither"
        yield _refusal(config, what, "init_method", "output_layer_init_method", hint=hint)


def _save_intervals(config: Config) -> Iterator[Problem]:
    checkpoint = config.checkpoint
    if checkpoint.save and (checkpoint.checkpoint_scale != "linear" or checkpoint.extra_save_iters):
        what = "Megatron-LM saves checkpoints only at fixed intervals: "
        what += "it supports neither checkpoint_scale: log nor extra_save_iters"
        hint = "remove checkpoint_scale and extra_save_iters, and set only checkpoint_factor"
        yield _refusal(config, what, "checkpoint_scale", "extra_save_iters", hint=hint)
