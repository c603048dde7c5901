"""Mixture of experts: layers of which each token uses a part."""

from __future__ import annotations

from typing import Literal

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count, NonNegative


class Moe(
    Group,
    origin="NeoX",
    effect="none",
    no_effect_reason="only a mixture of experts reads it, which train.py does not have",
):
    """Mixture of experts."""

    moe_num_experts: Count = param(1, megatron="num-experts", aliases="num_experts", effect="not built")
    """Experts per mixture-of-experts layer. 1 leaves the feed-forward layers dense."""

    moe_expert_interval: Count = param(1, megatron="moe-layer-freq", aliases="expert_interval")
    """Every how many layers the feed-forward layer is a mixture of experts: 1 all, 2 every second one."""

    moe_top_k: Count = param(1, megatron="moe-router-topk")
    """Experts that process each token."""

    moe_router_type: Literal["sinkhorn", "topk"] = param("sinkhorn")
    """How tokens choose experts: `sinkhorn` balances the load while training by matching tokens and experts, `topk`
    takes the highest probabilities."""

    moe_lbl_in_fp32: bool = param(False)
    """Computes the load-balancing loss of the experts in fp32."""

    moe_jitter_eps: NonNegative | None = param(None, megatron="moe-input-jitter-eps")
    """Width of the random factor, from 1 - eps to 1 + eps, on the router's input while training. Left out, there is
    none."""
