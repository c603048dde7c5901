"""OLMo 2 (arXiv:2501.00656): a LLaMA with norms after attention and feed-forward, and over the queries of all heads."""

from __future__ import annotations

from dataclasses import replace

from neoxargs.convert.huggingface.families.llama import (
    CONSTANTS,
    DEMANDS,
    LLAMA,
    WEIGHTS,
    decoder_settings,
)
from neoxargs.convert.huggingface.families.qwen import HEAD_NORMS
from neoxargs.convert.huggingface.family import Weights
from neoxargs.convert.huggingface.settings import kv_heads, requires, same
from neoxargs.convert.huggingface.windows import NO_WINDOW

NORMS = (
    Weights("layers.{}.attention_output_layernorm", ("layers.{}.post_attention_layernorm",)),
    Weights("layers.{}.mlp_output_layernorm", ("layers.{}.post_feedforward_layernorm",)),
)
OF_OLMO2 = {
    "norm_placement": "after", "use_qk_layernorm": True, "qk_layernorm_scope": "all_heads", "use_bias_in_mlp": False,
}  # fmt: skip
OLMO2 = replace(
    LLAMA,
    architecture="Olmo2ForCausalLM",
    model_type="olmo2",
    settings=(
        *decoder_settings(rms_norm_eps=1e-5), kv_heads(None), same("attention_bias", "use_bias_in_attn_linear", False),
    ),
    demands=(*DEMANDS, NO_WINDOW, *requires(OF_OLMO2)),
    constants={**CONSTANTS, **OF_OLMO2},
    weights=(*(row for row in WEIGHTS if "layernorm" not in row.ours), *NORMS, *HEAD_NORMS),
)  # fmt: skip
