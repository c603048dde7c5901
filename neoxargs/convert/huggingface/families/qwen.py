"""Qwen2: a LLaMA with biases of queries, keys and values. Qwen3: no biases, but a norm of each head's queries and keys.

Both may have a sliding window in the layers from `max_window_layers` on, if `use_sliding_window` is true.
"""

from __future__ import annotations

from dataclasses import replace

from neoxargs.convert.huggingface.families.llama import (
    CONSTANTS,
    DEMANDS,
    LLAMA,
    NO_BIASES,
    WEIGHTS,
    decoder_settings,
)
from neoxargs.convert.huggingface.family import Values, Weights
from neoxargs.convert.huggingface.settings import (
    head_width,
    kv_heads,
    only,
    requires,
    same,
)
from neoxargs.convert.huggingface.windows import FULL, LAYER_WINDOWS, SLIDING, USES_WINDOW, windows


def _windows(keys: Values) -> Values:
    """Return the parameters of the window; transformers ignores it unless `use_sliding_window` is true."""
    if not keys.get("use_sliding_window"):
        return {}
    layers, first = keys.get("num_hidden_layers", 32), keys.get("max_window_layers", 28)
    types = keys.get("layer_types") or [SLIDING if layer >= first else FULL for layer in range(layers)]
    return windows(keys.get("sliding_window", 4096), types)


SETTINGS = (
    *decoder_settings(intermediate_size=22016, max_position_embeddings=32768),
    *LAYER_WINDOWS,
    USES_WINDOW,
    kv_heads(32),
)
#: The norms of each head's queries and keys, in families that have them.
HEAD_NORMS = (
    Weights("layers.{}.attention.norms.0", ("layers.{}.self_attn.q_norm",)),
    Weights("layers.{}.attention.norms.1", ("layers.{}.self_attn.k_norm",)),
)
OF_QWEN2 = {"add_qkv_bias": True, **NO_BIASES}
OF_QWEN3 = {"use_qk_layernorm": True, "use_bias_in_mlp": False}
QWEN2 = replace(
    LLAMA,
    architecture="Qwen2ForCausalLM",
    model_type="qwen2",
    settings=SETTINGS,
    demands=(*DEMANDS, *requires(OF_QWEN2)),
    constants={**CONSTANTS, **OF_QWEN2},
    from_keys=_windows,
)  # fmt: skip
QWEN3 = replace(
    QWEN2,
    architecture="Qwen3ForCausalLM",
    model_type="qwen3",
    settings=(
        *(row for row in SETTINGS if row.key != "head_dim"), head_width(128),
        same("attention_bias", "use_bias_in_attn_linear", False),
    ),
    demands=(*DEMANDS, *requires(OF_QWEN3), only("qk_layernorm_scope", "head")),
    constants={**CONSTANTS, **OF_QWEN3},
    weights=(*WEIGHTS, *HEAD_NORMS),
)  # fmt: skip
