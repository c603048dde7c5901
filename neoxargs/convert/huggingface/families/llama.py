"""LLaMA, and Mistral: a LLaMA without biases and with a sliding window.

In GPT-NeoX's gated projection, the first half is the value (`up_proj`) and the second the gate (`gate_proj`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from neoxargs.convert.huggingface.family import Family, Fixed, Setting, Values, Weights
from neoxargs.convert.huggingface.forms import HALVES, HEADS, VOCABULARY
from neoxargs.convert.huggingface.settings import (
    ALWAYS_GATED,
    COMMON_FIXED,
    EPSILON_UNDER_ROOT,
    FULL_ATTENTION,
    ONE_EPSILON,
    SCALED_POSITIONS,
    activation,
    head_width,
    kv_heads,
    longest_positions,
    mlp_width_setting,
    only,
    requires,
    rope_keys,
    rope_scaling,
    rotary_base,
    same,
    weight_tying,
)
from neoxargs.convert.huggingface.windows import EVERY_WINDOW, NO_WINDOW, sliding_window

#: The kinds of scaled positions that transformers' Llama has.
SCALED = ("linear", "dynamic", "yarn", "llama3", "longrope")


def decoder_settings(scaled: tuple[str, ...] = SCALED, **defaults: Any) -> tuple[Setting, ...]:
    """Return the settings that LLaMA and its descendants have. defaults: of transformers, if they are not LLaMA's."""
    rows = (
        same("hidden_size", "hidden_size", 4096),
        same("num_hidden_layers", "num_layers", 32),
        same("num_attention_heads", "num_attention_heads", 32),
        longest_positions(2048),
        same("rms_norm_eps", "rms_norm_epsilon", 1e-6),
        same("initializer_range", "init_method_std", 0.02),
        same("attention_dropout", "attention_dropout", 0.0),
        activation("hidden_act", "silu", gated=True),
        mlp_width_setting("intermediate_size", 11008, gated=True),
        rotary_base("rope_parameters.rope_theta", ("rope_theta",)),
        *rope_scaling("rope_parameters", *scaled),
        weight_tying(False),
        head_width(None),
    )
    return tuple(row._replace(default=defaults.get(row.key, row.default)) for row in rows)


_REQUIRED = {"norm": "rmsnorm", "pos_emb": "rotary", "rotary_pct": 1.0}
#: The parameters of every LLaMA. A model that was trained with dropout can be exported.
CONSTANTS = {**_REQUIRED, "hidden_dropout": 0.0}
DEMANDS = (
    *requires(_REQUIRED), only("gpt_j_residual", False),
    only("apply_residual_connection_post_layernorm", False), ALWAYS_GATED, EPSILON_UNDER_ROOT, FULL_ATTENTION,
    SCALED_POSITIONS, ONE_EPSILON,
)  # fmt: skip
NO_BIASES = {"use_bias_in_attn_linear": False, "use_bias_in_mlp": False}
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


def rope_theta(keys: Values) -> Values:
    return rope_keys(keys, rope_theta="rope_theta")


LLAMA = Family(
    architecture="LlamaForCausalLM",
    model_type="llama",
    prefix="model.",
    settings=(
        *decoder_settings(),
        kv_heads(None),
        same("attention_bias", "use_bias_in_attn_linear", False),
        same("mlp_bias", "use_bias_in_mlp", False),
    ),
    demands=(*DEMANDS, NO_WINDOW),
    fixed=COMMON_FIXED,
    constants=CONSTANTS,
    weights=WEIGHTS,
    compatibility_keys=rope_theta,
)
#: Mistral 7B, and Mistral-Nemo, whose heads are narrower than hidden_size / num_attention_heads.
MISTRAL = replace(
    LLAMA,
    architecture="MistralForCausalLM",
    model_type="mistral",
    settings=(
        *decoder_settings(intermediate_size=14336, max_position_embeddings=131072), kv_heads(8), sliding_window(4096),
    ),
    demands=(*DEMANDS, EVERY_WINDOW, *requires(NO_BIASES)),
    fixed=(*COMMON_FIXED, Fixed("layer_types", (None,))),
    constants={**CONSTANTS, **NO_BIASES},
)  # fmt: skip
