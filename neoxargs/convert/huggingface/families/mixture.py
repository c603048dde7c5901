"""Mixtures of experts: Mixtral, a Mistral with experts (arXiv:2401.04088), and OLMoE (arXiv:2409.02060).

Their load-balancing losses pool all layers, ours balances each one; its weight is therefore not taken over.
"""

from __future__ import annotations

from dataclasses import replace

from neoxargs.convert.huggingface.families.llama import (
    CONSTANTS,
    DEMANDS,
    LLAMA,
    SCALED,
    WEIGHTS,
    decoder_settings,
)
from neoxargs.convert.huggingface.families.qwen import HEAD_NORMS
from neoxargs.convert.huggingface.family import Demand, Fixed, Weights
from neoxargs.convert.huggingface.forms import EXPERT_HALVES, EXPERTS
from neoxargs.convert.huggingface.settings import COMMON_FIXED, kv_heads, only, optional, requires, same
from neoxargs.convert.huggingface.windows import EVERY_WINDOW, NO_WINDOW, sliding_window

#: The weights of a LLaMA without its feed-forward.
AROUND = tuple(row for row in WEIGHTS if ".mlp." not in row.ours)
ROUTED = {"moe_router_type": "topk", "moe_expert_interval": 1}
EXPERTS_EVERYWHERE = (
    Demand("moe_num_experts", lambda config: config.moe.moe_num_experts > 1, "at least two experts"),
    *requires(ROUTED), only("moe_num_shared_experts", 0),
    only("moe_token_dropping", False), only("moe_type", "megablocks"),
    only("use_bias_in_mlp", False, True),  # experts have no biases
)  # fmt: skip


def _experts(module: str, first: tuple[str, str], second: str) -> tuple[Weights, ...]:
    """Return the rows of router and experts. first: their value and gate."""
    networks = f"layers.{{}}.{module}.experts.{{expert}}"
    return (
        Weights("layers.{}.mlp.router", (f"layers.{{}}.{module}.gate",)),
        Weights("layers.{}.mlp.experts.dense_h_to_4h", tuple(f"{networks}.{name}" for name in first), EXPERT_HALVES),
        Weights("layers.{}.mlp.experts.dense_4h_to_h", (f"{networks}.{second}",), EXPERTS),
    )


OF_MIXTRAL = {"moe_normalize_expert_weights": True, "use_bias_in_attn_linear": False}
OF_OLMOE = {"use_qk_layernorm": True, "qk_layernorm_scope": "all_heads"}
MIXTRAL = replace(
    LLAMA,
    architecture="MixtralForCausalLM",
    model_type="mixtral",
    settings=(
        *decoder_settings(
            SCALED, intermediate_size=14336, max_position_embeddings=131072, rms_norm_eps=1e-5,
            **{"rope_parameters.rope_theta": 1e6},
        ),
        kv_heads(8), sliding_window(None), same("num_local_experts", "moe_num_experts", 8),
        same("num_experts_per_tok", "moe_top_k", 2),
        optional("router_jitter_noise", "moe_jitter_eps", 0.0, lambda config: config.moe.moe_jitter_eps or 0.0),
    ),
    demands=(*DEMANDS, EVERY_WINDOW, *EXPERTS_EVERYWHERE, *requires(OF_MIXTRAL)),
    constants={**CONSTANTS, **ROUTED, **OF_MIXTRAL, "use_bias_in_mlp": False},
    # w3 is the value, w1 the gate, w2 the second matrix.
    weights=(*AROUND, *_experts("block_sparse_moe", ("w3", "w1"), "w2")),
)  # fmt: skip
OLMOE = replace(
    LLAMA,
    architecture="OlmoeForCausalLM",
    model_type="olmoe",
    settings=(
        *decoder_settings(intermediate_size=2048, max_position_embeddings=4096, rms_norm_eps=1e-5),
        kv_heads(None), same("attention_bias", "use_bias_in_attn_linear", False),
        same("num_experts", "moe_num_experts", 64), same("num_experts_per_tok", "moe_top_k", 8),
        same("norm_topk_prob", "moe_normalize_expert_weights", False),
    ),
    demands=(
        *DEMANDS, NO_WINDOW, *EXPERTS_EVERYWHERE, *requires(OF_OLMOE), only("moe_jitter_eps", None, 0.0),
    ),
    fixed=(*COMMON_FIXED, Fixed("clip_qkv", (None,))),
    constants={**CONSTANTS, **ROUTED, **OF_OLMOE, "use_bias_in_mlp": False},
    weights=(*AROUND, *HEAD_NORMS, *_experts("mlp", ("up_proj", "gate_proj"), "down_proj")),
)  # fmt: skip
