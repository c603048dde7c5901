"""Mixture of experts."""

from __future__ import annotations

from typing import Literal

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count, Natural, NonNegative, Positive


class Moe(Group, origin="NeoX", effect="model"):
    """Mixture of experts."""

    moe_num_experts: Count = param(1, megatron="num-experts", aliases="num_experts")
    """Number of experts in each mixture-of-experts layer. 1 leaves the feed-forward layers dense. Each expert has the
    width of a dense layer (`intermediate_size`) and no biases."""

    moe_expert_interval: Count = param(1, megatron="moe-layer-freq", aliases="expert_interval")
    """Interval between the layers with experts: with 1, all layers have experts; with 2, the first, the third and so
    on. The default is 2 in a dialect before May 2025, or if a parameter is set that GPT-NeoX retired in that month."""

    moe_top_k: Count = param(1, megatron="moe-router-topk")
    """Number of experts that process each token."""

    moe_router_type: Literal["sinkhorn", "topk"] = param("sinkhorn")
    """How tokens choose experts: `topk` takes the highest probabilities; `sinkhorn` does so too, but in training it
    first balances the load by matching tokens and experts. The default is `topk` in a dialect before May 2025, or if a
    parameter is set that GPT-NeoX retired in that month."""

    moe_normalize_expert_weights: bool = param(False, ours=True)
    """Divide the routing weights of a token's experts by their sum, as Mixtral does."""

    moe_num_shared_experts: Natural = param(0, ours=True)
    """Number of experts that process every token with weight 1, in addition to those that the token chooses
    (DeepSeekMoE)."""

    moe_aux_loss_coeff: NonNegative = param(0.0, megatron="moe-aux-loss-coeff", ours=True)
    """Weight of the load-balancing loss of each mixture-of-experts layer in the loss that is minimised (Switch
    Transformers). The load-balancing loss is not part of the reported loss; it is logged as
    `moe/load_balancing_loss`. The default is `moe_loss_coeff` if that is set."""

    moe_z_loss_coeff: NonNegative = param(0.0, megatron="moe-z-loss-coeff", ours=True)
    """Weight of the router's z loss, the mean of the squared logarithm of its softmax's denominator (ST-MoE), in the
    loss that is minimised. Logged as `moe/z_loss`."""

    moe_lbl_in_fp32: bool = param(
        False, effect="none", no_effect_reason="the router and its losses are always computed in fp32"
    )
    """Computes the load-balancing loss of the experts in fp32."""

    moe_jitter_eps: NonNegative | None = param(None, megatron="moe-input-jitter-eps")
    """During training, multiplies the router's input by a random factor from 1 - eps to 1 + eps, where eps is this
    value. If not set, there is no such factor."""

    moe_token_dropping: bool = param(False)
    """Limit the number of tokens per expert to its capacity; the excess tokens, those with the lowest routing weights,
    skip the expert. So whether a token is dropped depends on later tokens too, and on the other samples of the micro
    batch. false: every expert processes all tokens that chose it."""

    moe_train_capacity_factor: Positive = param(1.0)
    """Capacity of each expert in training, as a multiple of its even share of a micro batch's tokens. Needs
    `moe_token_dropping`."""

    moe_eval_capacity_factor: Positive = param(1.0)
    """Capacity of each expert in evaluation and generation, as a multiple of its even share of a micro batch's
    tokens. With `moe_num_experts` / `moe_top_k` or more, no token is dropped."""

    moe_min_capacity: Natural = param(4)
    """Minimum capacity of each expert, regardless of the capacity factors."""

    enable_expert_tensor_parallelism: bool = param(False, effect="layout")
    """Divide the width of every expert among the tensor parallel ranks. false: each rank holds the same number of whole
    experts."""

    moe_loss_coeff: NonNegative = param(0.1, effect="model")
    """Retired in May 2025; `moe_aux_loss_coeff` has replaced it. In GPT-NeoX, this loss contributed no gradient."""

    moe_use_residual: bool = param(True)
    """Retired in May 2025. Adds a dense feed-forward layer in parallel with the experts, and mixes both outputs by
    learned weights. Read only with `moe_type: deepspeed`."""

    moe_glu: bool = param(
        False,
        effect="not built",
        refused="it gates the experts but not the dense feed-forward layers; in deepy, both have the same activation",
        instead="set activation: geglu",
    )
    """Retired in May 2025: set `activation` to a gated function, such as `geglu`. It gated the experts."""

    moe_type: Literal["deepspeed", "megablocks"] = param("megablocks")
    """Retired in May 2025. It chose the library that computed the experts. With `deepspeed`, the routing weights of a
    token's two experts are divided by their sum, and `moe_use_residual` is read."""

    create_moe_param_group: bool = param(
        True, effect="none", no_effect_reason="train.py needs no separate parameter groups for experts"
    )
    """Retired in May 2025. It put the experts' weights into parameter groups of their own."""

    use_tutel: bool = param(False, effect="none", no_effect_reason="train.py has only one implementation of experts")
    """Retired in May 2025. It sent tokens to experts with the Tutel package."""
