"""Architectures other than a plain GPT, and what only they read."""

from __future__ import annotations

from typing import Literal

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count, Natural, NonNegative, Positive


class Mamba(Group, origin="NeoX"):
    """Mamba state space layers (`attention_config: [[[mamba], all]]`)."""

    mamba_selective_scan_fusion: bool = param(False)
    mamba_causal_conv_fusion: bool = param(False)
    mamba_inner_func_fusion: bool = param(False)
    mamba_selective_fp32_params: bool = param(True)
    mamba_use_bias_in_conv: bool = param(True)
    mamba_use_bias_in_linears: bool = param(False)


class Rwkv(Group, origin="NeoX"):
    """RWKV layers (`attention_config: [[[rwkv], all]]`)."""

    dim_att: Count | None = param(None)
    head_size: Count | None = param(None)
    ffn_dim: Count | None = param(None)


class Gmlp(Group, origin="NeoX"):
    """gMLP layers (`attention_config: [[[gmlp], all]]` or `amlp`)."""

    gmlp_attn_dim: Count = param(64)


class Moe(Group, origin="NeoX"):
    """Mixture of experts."""

    moe_num_experts: Count = param(1, megatron="num-experts", renamed_from="num_experts")
    moe_expert_interval: Count = param(1, megatron="moe-layer-freq", renamed_from="expert_interval")
    moe_top_k: Count = param(1, megatron="moe-router-topk")
    moe_router_type: Literal["sinkhorn", "topk"] = param("sinkhorn")
    moe_lbl_in_fp32: bool = param(False)
    moe_jitter_eps: NonNegative | None = param(None, megatron="moe-input-jitter-eps")


class TransformerEngine(Group, origin="NeoX"):
    """NVIDIA Transformer Engine layers and fp8."""

    te_columnparallel: bool = param(False)
    te_rowparallel: bool = param(False)
    te_layernorm_mlp: bool = param(False)
    te_mha: bool = param(False)
    te_fp8_format: Literal["e4m3", "hybrid"] = param("hybrid", megatron="fp8-format")
    te_fp8_wgrad: bool = param(True, megatron="!no-fp8-wgrad")
    te_fp8_amax_history_len: Count = param(1, megatron="fp8-amax-history-len")
    te_fp8_amax_compute_algo: Literal["most_recent", "max"] = param("most_recent", megatron="fp8-amax-compute-algo")
    te_fp8_margin: Natural = param(0, megatron="fp8-margin")
    te_fp8_mha: bool = param(False)


class SoftPrompt(Group, origin="NeoX", section="soft_prompt_tuning"):
    """A trained prefix in front of a frozen model."""

    enabled: bool = param(False)
    num_tokens: Count = param(10)
    init_string: str = param("")
    init_range: Positive = param(0.5)


class Mup(Group, origin="NeoX"):
    """Maximal update parametrisation: hyperparameters that carry over between widths."""

    use_mup: bool = param(False, megatron="use-mup")
    coord_check: bool = param(False)
    save_base_shapes: bool = param(False)
    base_shapes_file: str | None = param(None)
    mup_init_scale: Positive = param(1.0)
    mup_attn_temp: Positive = param(1.0)
    mup_output_temp: Positive = param(1.0)
    mup_embedding_mult: Positive = param(1.0, megatron="mup-embedding-mult")
    mup_rp_embedding_mult: Positive = param(1.0)
    mup_width_scale: Count = param(2)
