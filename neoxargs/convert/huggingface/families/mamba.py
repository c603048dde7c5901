"""Mamba (arXiv:2312.00752), every layer of which is recurrent, such as state-spaces/mamba-130m-hf.

Weights have the same form and almost the same names. Only the sizes that are fixed in GPT-NeoX are supported.
"""

from __future__ import annotations

from neoxargs.config.config import Config
from neoxargs.convert.huggingface.family import OMIT, Demand, Family, Fixed, Setting, Values, Weights, same_names
from neoxargs.convert.huggingface.forms import VOCABULARY
from neoxargs.convert.huggingface.settings import (
    COMMON_FIXED,
    EPSILON_UNDER_ROOT,
    only,
    optional,
    requires,
    same,
    weight_tying,
)
from neoxargs.facts.layer_kinds import layer_kind
from neoxargs.facts.mamba import STATE, TAPS, has_scan_bias, rank_of_steps

_REQUIRED = {"norm": "rmsnorm", "pos_emb": "none"}
#: Width of the residual stream that transformers assumes if config.json does not have it.
HIDDEN_SIZE = 768


def _inner(config: Config) -> int:
    return config.mamba.mamba_inner_size


def _biases(use_bias: bool) -> Values:
    return {"mamba_use_bias_in_linears": use_bias} | ({"mamba_use_bias_in_x_proj": False} if use_bias else {})


SETTINGS = (
    same("hidden_size", "hidden_size", HIDDEN_SIZE),
    same("num_hidden_layers", "num_layers", 32),
    same("layer_norm_epsilon", "rms_norm_epsilon", 1e-5),
    same("initializer_range", "init_method_std", 0.1),
    same("use_conv_bias", "mamba_use_bias_in_conv", True),
    Setting(
        "use_bias", ("mamba_use_bias_in_linears",), False,
        lambda config: config.mamba.mamba_use_bias_in_linears, _biases,
    ),
    # transformers prefers `intermediate_size`, which may be no multiple of hidden_size; `_sizes` reads `expand`.
    optional("intermediate_size", "mamba_inner_size", None, _inner),
    Setting(
        "expand", ("mamba_inner_size",), 2, lambda config: max(_inner(config) // config.shape.hidden_size, 1),
        lambda value: {},
    ),
    # It changes only what is rounded: the residual stream of a run has the run's precision.
    Setting(
        "residual_in_fp32", ("precision",), True, lambda config: config.get("precision") in (None, "fp32"),
        lambda value: {} if isinstance(value, bool) else None,
    ),
    # transformers has no such key; the default is the length that the published models were trained with.
    same("max_position_embeddings", "max_position_embeddings", 2048),
    # Mamba has no heads, but our configuration needs their number.
    Setting("num_attention_heads", ("num_attention_heads", "num_kv_heads"), 1, lambda config: OMIT, lambda value: {}),
    weight_tying(True),
)  # fmt: skip
DEMANDS = (
    Demand(
        "attention_config",
        lambda config: {layer_kind(config, layer) for layer in range(config.shape.num_layers)} == {"mamba"},
        "Mamba in every layer",
    ),
    *requires(_REQUIRED), only("apply_residual_connection_post_layernorm", False), EPSILON_UNDER_ROOT,
    Demand(
        "mamba_use_bias_in_x_proj", lambda config: not has_scan_bias(config),
        "mamba_use_bias_in_x_proj: false, or mamba_use_bias_in_linears: false",
    ),
)  # fmt: skip


def _sizes(keys: Values) -> Values:
    """Return the inner width if only `expand` says it; raise ValueError if the rank of the step sizes is another."""
    hidden, rank = keys.get("hidden_size", HIDDEN_SIZE), keys.get("time_step_rank", "auto")
    if type(hidden) is not int:  # a row of the settings reports it
        return {}
    if rank not in ("auto", expected := rank_of_steps(hidden)):
        raise ValueError(f"time_step_rank ({rank}) instead of {expected}, which is hidden_size / 16 rounded up,")
    return {} if keys.get("intermediate_size") else {"mamba_inner_size": keys.get("expand", 2) * hidden}


def _of_state(name: str) -> Weights:
    return Weights("layers.{}.mixer", ("layers.{}.mixer",), kinds=(name,))


MAMBA = Family(
    architecture="MambaForCausalLM",
    model_type="mamba",
    prefix="backbone.",
    settings=SETTINGS,
    demands=DEMANDS,
    fixed=(
        *COMMON_FIXED, Fixed("state_size", (STATE,)), Fixed("conv_kernel", (TAPS,)),
        Fixed("hidden_act", ("silu", "swish")),
    ),
    constants={
        **_REQUIRED, "attention_config": [[["mamba"], "all"]], "num_attention_heads": 1, "hidden_dropout": 0.0,
    },
    weights=(
        Weights("embedding.word_embeddings", ("embeddings",), VOCABULARY),
        *same_names("norm", "mixer.in_proj", "mixer.conv1d", "mixer.x_proj", "mixer.dt_proj"),
        _of_state("A_log"), _of_state("D"), *same_names("mixer.out_proj"),
        Weights("final_norm", ("norm_f",)),
        Weights("output", ("lm_head",), VOCABULARY),
    ),
    from_keys=_sizes,
    aliases={"embedding": "embeddings"},
)  # fmt: skip
