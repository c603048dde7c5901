"""LLaMA, and Mistral: a LLaMA without biases and with a sliding window.

transformers counts the token itself as part of the window, `sliding_window_width` does not. In GPT-NeoX's gated
projection, the first half is the value (`up_proj`) and the second the gate (`gate_proj`).
"""

from __future__ import annotations

from neoxargs.train.huggingface.family import (
    ALWAYS_GATED,
    COMMON_FIXED,
    EPSILON_UNDER_ROOT,
    FULL_ATTENTION,
    Family,
    Fixed,
    Setting,
    Weights,
    activation,
    mlp_width_setting,
    only,
    rope_keys,
    rotary_base,
    same,
    weight_tying,
)
from neoxargs.train.huggingface.forms import HALVES, HEADS, VOCABULARY

SETTINGS = (
    same("hidden_size", "hidden_size", 4096),
    same("num_hidden_layers", "num_layers", 32),
    same("num_attention_heads", "num_attention_heads", 32),
    same("max_position_embeddings", "max_position_embeddings", 2048),
    same("rms_norm_eps", "rms_norm_epsilon", 1e-6),
    same("initializer_range", "init_method_std", 0.02),
    same("attention_dropout", "attention_dropout", 0.0),
    activation("hidden_act", "silu", gated=True),
    mlp_width_setting("intermediate_size", 11008, gated=True),
    rotary_base("rope_parameters.rope_theta", ("rope_theta",)),
    weight_tying(False),
)
DEMANDS = (
    only("norm", "rmsnorm"), only("pos_emb", "rotary"), only("rotary_pct", 1.0), only("gpt_j_residual", False),
    only("apply_residual_connection_post_layernorm", False), ALWAYS_GATED, EPSILON_UNDER_ROOT, FULL_ATTENTION,
)  # fmt: skip
CONSTANTS = {"norm": "rmsnorm", "pos_emb": "rotary", "rotary_pct": 1.0, "hidden_dropout": 0.0}
WEIGHTS = (
    Weights("embedding.word_embeddings", ("embed_tokens",), VOCABULARY),
    Weights("layers.{}.input_layernorm", ("layers.{}.input_layernorm",)),
    Weights(
        "layers.{}.attention.query_key_value",
        ("layers.{}.self_attn.q_proj", "layers.{}.self_attn.k_proj", "layers.{}.self_attn.v_proj"),
        HEADS,
    ),
    Weights("layers.{}.attention.dense", ("layers.{}.self_attn.o_proj",)),
    Weights("layers.{}.post_attention_layernorm", ("layers.{}.post_attention_layernorm",)),
    Weights("layers.{}.mlp.dense_h_to_4h", ("layers.{}.mlp.up_proj", "layers.{}.mlp.gate_proj"), HALVES),
    Weights("layers.{}.mlp.dense_4h_to_h", ("layers.{}.mlp.down_proj",)),
    Weights("final_norm", ("norm",)),
    Weights("output", ("lm_head",), VOCABULARY),
)


#: transformers' defaults for Mistral that differ from those for LLaMA.
MISTRAL_DEFAULTS = {"intermediate_size": 14336, "max_position_embeddings": 131072}


def _kv_heads(default: int | None) -> Setting:
    return Setting(
        "num_key_value_heads", ("num_kv_heads",), default, lambda config: config.shape.num_kv_heads,
        lambda value: {"num_kv_heads": value} if value else {},
    )  # fmt: skip


LLAMA = Family(
    architecture="LlamaForCausalLM",
    model_type="llama",
    prefix="model.",
    settings=(
        *SETTINGS,
        _kv_heads(None),
        same("attention_bias", "use_bias_in_attn_linear", False),
        same("mlp_bias", "use_bias_in_mlp", False),
    ),
    demands=(*DEMANDS, only("sliding_window_width", None)),
    fixed=COMMON_FIXED,
    constants=CONSTANTS,
    weights=WEIGHTS,
    compatibility_keys=lambda keys: rope_keys(keys, rope_theta="rope_theta"),
)
MISTRAL = Family(
    architecture="MistralForCausalLM",
    model_type="mistral",
    prefix="model.",
    settings=(
        *(row._replace(default=MISTRAL_DEFAULTS.get(row.key, row.default)) for row in SETTINGS),
        _kv_heads(8),
        Setting(
            "sliding_window", ("sliding_window_width",), 4096,
            lambda config: config.attention.sliding_window_width and config.attention.sliding_window_width + 1,
            lambda value: {"sliding_window_width": value - 1} if value and value > 1 else None if value else {},
        ),
    ),
    demands=(*DEMANDS, only("use_bias_in_attn_linear", False), only("use_bias_in_mlp", False)),
    fixed=(*COMMON_FIXED, Fixed("layer_types", (None,))),
    constants={**CONSTANTS, "use_bias_in_attn_linear": False, "use_bias_in_mlp": False},
    weights=WEIGHTS,
    compatibility_keys=lambda keys: rope_keys(keys, rope_theta="rope_theta"),
)  # fmt: skip
