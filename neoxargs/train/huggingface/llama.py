"""LLaMA and Mistral, which is a LLaMA without biases whose tokens see no further back than a window.

A window counts the token itself there and not here. GPT-NeoX's first half of a gated projection is what is gated.
"""

from __future__ import annotations

from neoxargs.train.huggingface.family import (
    ALWAYS_GATED,
    DENSE,
    EVERY,
    Family,
    Fixed,
    Setting,
    Weights,
    activation,
    base,
    only,
    rope,
    same,
    tied,
    width,
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
    width("intermediate_size", 11008, gated=True),
    base("rope_parameters.rope_theta", ("rope_theta",)),
    tied(False),
)
DEMANDS = (
    only("norm", "rmsnorm"), only("pos_emb", "rotary"), only("rotary_pct", 1.0), only("gpt_j_residual", False),
    only("apply_residual_connection_post_layernorm", False), ALWAYS_GATED, DENSE,
)  # fmt: skip
ALWAYS = {"norm": "rmsnorm", "pos_emb": "rotary", "rotary_pct": 1.0, "hidden_dropout": 0.0}
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


#: Where transformers takes something else for Mistral.
MISTRALS = {"intermediate_size": 14336, "max_position_embeddings": 131072}


def _shared(default: int | None) -> Setting:
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
        _shared(None),
        same("attention_bias", "use_bias_in_attn_linear", False),
        same("mlp_bias", "use_bias_in_mlp", False),
    ),
    demands=(*DEMANDS, only("sliding_window_width", None)),
    fixed=EVERY,
    always=ALWAYS,
    weights=WEIGHTS,
    older=lambda told: rope(told, rope_theta="rope_theta"),
)
MISTRAL = Family(
    architecture="MistralForCausalLM",
    model_type="mistral",
    prefix="model.",
    settings=(
        *(row._replace(default=MISTRALS[row.key]) if row.key in MISTRALS else row for row in SETTINGS),
        _shared(8),
        Setting(
            "sliding_window", ("sliding_window_width",), 4096,
            lambda config: config.attention.sliding_window_width and config.attention.sliding_window_width + 1,
            lambda value: {"sliding_window_width": value - 1} if value and value > 1 else None if value else {},
        ),
    ),
    demands=(*DEMANDS, only("use_bias_in_attn_linear", False), only("use_bias_in_mlp", False)),
    fixed=(*EVERY, Fixed("layer_types", (None,))),
    always={**ALWAYS, "use_bias_in_attn_linear": False, "use_bias_in_mlp": False},
    weights=WEIGHTS,
    older=lambda told: rope(told, rope_theta="rope_theta"),
)  # fmt: skip
