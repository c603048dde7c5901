"""Mixture of experts."""

from __future__ import annotations

from typing import Literal

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count, Natural, NonNegative, Positive


class Moe(
    Group,
    origin="NeoX",
    effect="none",
    no_effect_reason="only mixture-of-experts layers read it, which train.py does not support",
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

    # Retired in May 2025, when GPT-NeoX replaced the experts of DeepSpeed and MegaBlocks: no token is dropped,
    # tensor parallel ranks hold the experts, and there is no load-balancing loss.

    moe_type: Literal["deepspeed", "megablocks"] = param("megablocks")
    """Retired in May 2025: which library computed the experts. GPT-NeoX now has its own implementation."""

    moe_token_dropping: bool = param(False)
    """Retired in May 2025: whether an expert left out tokens beyond its capacity; false made room for all of them, as
    GPT-NeoX does now."""

    moe_train_capacity_factor: Positive = param(1.0)
    """Retired in May 2025: room of each expert in training, as a multiple of its even share of the tokens. Only read
    by `moe_type: deepspeed`."""

    moe_eval_capacity_factor: Positive = param(1.0)
    """Retired in May 2025: the same room in evaluation. Only read by `moe_type: deepspeed`."""

    moe_min_capacity: Natural = param(4)
    """Retired in May 2025: minimum number of tokens that each expert has room for, regardless of the factors. Only read
    by `moe_type: deepspeed`."""

    moe_expert_parallel_size: Count = param(1)
    """Retired in May 2025: how many data parallel ranks shared the experts of a layer; a divisor of `moe_num_experts`.
    Now the tensor parallel ranks (`model_parallel_size`) do."""

    enable_expert_tensor_parallelism: bool = param(False)
    """Retired in May 2025: also divide every expert among the tensor parallel ranks. Only read by
    `moe_type: deepspeed`."""

    create_moe_param_group: bool = param(True)
    """Retired in May 2025: give the optimizer the experts' weights as separate groups, which expert parallelism needs.
    Only read by `moe_type: deepspeed`."""

    moe_use_residual: bool = param(True)
    """Retired in May 2025: a dense feed-forward layer in parallel to the experts, the two mixed by learned weights.
    Only read by `moe_type: deepspeed`."""

    moe_glu: bool = param(False)
    """Retired in May 2025: gate the experts. Only read by `moe_type: megablocks`, and not at all since September
    2024."""

    moe_loss_coeff: NonNegative = param(0.1)
    """Retired in May 2025: share of the load-balancing loss in the loss that was logged; no gradient came from it."""

    use_tutel: bool = param(False)
    """Retired in May 2025: send tokens to experts through the package Tutel. Only read by `moe_type: deepspeed`."""
