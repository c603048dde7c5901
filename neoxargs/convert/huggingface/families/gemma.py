"""Gemma 2 and the text model of Gemma 3: norms before and after, with the scale 1 + weight; scaled embeddings.

Gemma 2 bounds attention scores and logits, and every second layer has a sliding window. Gemma 3 has norms of each
head's queries and keys instead of the bounds; layers with a window have a rotary base of their own.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from neoxargs.config.config import Config
from neoxargs.convert.huggingface.families.llama import (
    CONSTANTS,
    DEMANDS,
    LLAMA,
    WEIGHTS,
    decoder_settings,
)
from neoxargs.convert.huggingface.families.olmo import NORMS
from neoxargs.convert.huggingface.families.qwen import HEAD_NORMS
from neoxargs.convert.huggingface.family import Demand, Fixed, Setting, Values, Weights
from neoxargs.convert.huggingface.settings import (
    COMMON_FIXED,
    activation,
    head_width,
    kv_heads,
    only,
    requires,
    rope_keys,
    rope_scaling,
    rotary_base,
    same,
    weight_tying,
)
from neoxargs.convert.huggingface.windows import FULL, LAYER_WINDOWS, SLIDING, windows
from neoxargs.facts.attention import head_dim


def _windows(default: int, keys: Values) -> Values:
    """Return the parameters of the window. default: the distance between layers without one."""
    every = keys.get("sliding_window_pattern") or keys.get("_sliding_window_pattern") or default
    layers = range(1, keys.get("num_hidden_layers", 26) + 1)
    types = keys.get("layer_types") or [SLIDING if layer % every else FULL for layer in layers]
    # Gemma multiplies embeddings by this in its code; config.json has no key for it.
    multiplier = {"embedding_multiplier": keys.get("hidden_size", 2304) ** 0.5}
    return {**windows(keys.get("sliding_window", 4096), types), **multiplier}


def _bound(key: str, default: float | None) -> Setting:
    return Setting(
        key, (key,), default, lambda config: config.get(key), lambda value: {key: float(value)} if value else {}
    )


def _scalar(config: Config) -> float:
    """Return the number whose square root divides the scores."""
    scale = config.attention.softmax_scale
    if scale is None:
        return head_dim(config.shape)
    # An integer where it is one, as in the files of the models; rounded, because the square root loses digits.
    return int(scalar) if (scalar := round(scale**-2, 6)).is_integer() else scalar


SCALAR = Setting(
    "query_pre_attn_scalar", ("softmax_scale",), 256, _scalar, lambda value: {"softmax_scale": float(value) ** -0.5}
)
#: The kinds of scaled positions that can be exported.
SCALED = ("linear", "dynamic", "yarn", "llama3")
SIZES = {"hidden_size": 2304, "num_hidden_layers": 26, "num_attention_heads": 8, "intermediate_size": 9216}
SHARED = (
    kv_heads(4), head_width(256), weight_tying(True), activation("hidden_activation", "gelu_pytorch_tanh", gated=True),
    same("attention_bias", "use_bias_in_attn_linear", False), SCALAR, *LAYER_WINDOWS,
)  # fmt: skip


def _settings(*others: Setting, longest: int) -> tuple[Setting, ...]:
    """Return the settings of LLaMA with those of Gemma instead, and more."""
    replaced = {row.key for row in (*SHARED, *others)} | {"hidden_act"}
    rows = decoder_settings(SCALED, max_position_embeddings=longest, **SIZES)
    # Gemma's rows instead of LLaMA's rows for the same keys; `hidden_act` is replaced by `hidden_activation`.
    return (*(row for row in rows if row.key not in replaced), *SHARED, *others)


OF_GEMMA = {"norm_placement": "both", "apply_layernorm_1p": True, "use_bias_in_mlp": False}
GEMMA_DEMANDS = (
    *(demand for demand in DEMANDS if demand.ours != "rope_scaling.rope_type"), *requires(OF_GEMMA),
    only("rope_scaling.rope_type", "default", *SCALED),
    Demand(
        "embedding_multiplier",
        # With a tolerance, because a user may have written a rounded root.
        lambda config: abs(config.embedding.embedding_multiplier - config.shape.hidden_size**0.5) < 1e-3,
        "embedding_multiplier: the square root of hidden_size",
    ),
)  # fmt: skip
GEMMA_CONSTANTS = {**CONSTANTS, **OF_GEMMA}
FIXED = (*COMMON_FIXED, Fixed("use_bidirectional_attention", (False, None)))
GEMMA_WEIGHTS = (
    *(row for row in WEIGHTS if "post_attention_layernorm" not in row.ours), *NORMS,
    Weights("layers.{}.post_attention_layernorm", ("layers.{}.pre_feedforward_layernorm",)),
)  # fmt: skip
GEMMA2 = replace(
    LLAMA,
    architecture="Gemma2ForCausalLM",
    model_type="gemma2",
    settings=_settings(_bound("attn_logit_softcapping", 50.0), _bound("final_logit_softcapping", 30.0), longest=8192),
    demands=(*GEMMA_DEMANDS, only("rope_local_base_freq", None)),
    fixed=FIXED,
    constants=GEMMA_CONSTANTS,
    weights=GEMMA_WEIGHTS,
    from_keys=partial(_windows, 2),
)


FULL_ROPE, LOCAL_ROPE = f"rope_parameters.{FULL}", f"rope_parameters.{SLIDING}"


def _rope_keys(keys: Values) -> Values:
    """Return the rotary settings under their names before transformers 5."""
    full, local = keys["rope_parameters"][FULL], keys["rope_parameters"][SLIDING]
    return {
        **rope_keys({"rope_parameters": full}, rope_theta="rope_theta"),
        "rope_parameters": {FULL: full, SLIDING: {**local, "rope_type": "default"}},
        "rope_local_base_freq": local["rope_theta"],
    }


GEMMA3 = replace(
    GEMMA2,
    architecture="Gemma3ForCausalLM",
    model_type="gemma3_text",
    settings=tuple(
        row
        for row in _settings(
            rotary_base(f"{FULL_ROPE}.rope_theta", ("rope_theta",))._replace(default=1e6),
            *rope_scaling(FULL_ROPE, *SCALED),
            Setting(
                f"{LOCAL_ROPE}.rope_theta", ("rope_local_base_freq",), 10000.0,
                lambda config: float(config.embedding.rope_local_base_freq or config.embedding.rotary_emb_base),
                lambda value: {"rope_local_base_freq": int(value)} if value == int(value) else None,
                ("rope_local_base_freq",),
            ),
            _bound("attn_logit_softcapping", None), _bound("final_logit_softcapping", None), longest=131072,
        )
        # Gemma 3 has a section of rotary settings for each type of layer, so those directly in `rope_parameters` do not
        # apply.
        if not (row.key.startswith("rope_parameters.") and row.key.count(".") == 1)
    ),
    demands=(*GEMMA_DEMANDS, only("use_qk_layernorm", True), only("qk_layernorm_scope", "head")),
    constants={**GEMMA_CONSTANTS, "use_qk_layernorm": True},
    weights=(*GEMMA_WEIGHTS, *HEAD_NORMS),
    from_keys=partial(_windows, 6),
    compatibility_keys=_rope_keys,
)  # fmt: skip
