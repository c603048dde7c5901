"""Bytes that a mixture of experts stores per token, as `model/experts` computes it: the mean over a model's layers.

Each token is copied once for each of its experts. The copies are evenly divided among the tensor parallel ranks, up to
the imbalance of the routing, or with `enable_expert_tensor_parallelism` each rank has all of them. With
`moe_expert_parallel_size`, a rank sends them to the ranks of their experts, and receives as many, up to the imbalance.
"""

from __future__ import annotations

from neoxargs.config.config import Config
from neoxargs.facts.layer_kinds import attention_layers
from neoxargs.facts.model import has_dense_network, layers_with_experts
from neoxargs.plan.given.assumptions import SINGLE, Assumptions

#: fp32 tensors (tokens, experts) that the router and its losses store: logits and two softmaxes.
ROUTER_TENSORS = 3
#: Bytes of an index. Three are stored per copy: token, expert, and place in the sorted order. Of a copy that was
#: received, two more: its place among those of all ranks, and the inverse.
INDEX = 8


def share(config: Config) -> float:
    """Return the share of the layers with attention that have experts."""
    return len(layers_with_experts(config)) / max(1, len(attention_layers(config)))


def common_networks(config: Config) -> int:
    """Return the networks of a layer with experts that every token passes through."""
    return config.moe.moe_num_shared_experts + has_dense_network(config)


def networks(config: Config, assumed: Assumptions) -> float:
    """Return the feed-forward networks that a token passes through per layer, as the busiest rank sees them."""
    in_experts = config.moe.moe_top_k * imbalance(config, assumed) + common_networks(config)
    return 1 + share(config) * (in_experts - 1)


def imbalance(config: Config, assumed: Assumptions) -> float:
    """Return the load of the busiest rank relative to the mean; 1 where all ranks have parts of the same experts."""
    if held(config) == config.moe.moe_num_experts:
        return 1.0
    capacity = config.moe.moe_train_capacity_factor if config.moe.moe_token_dropping else assumed.expert_imbalance
    all_tokens = config.moe.moe_num_experts / config.moe.moe_top_k  # the load of an expert that every token chooses
    return min(assumed.expert_imbalance, max(1.0, capacity), all_tokens)


def held(config: Config) -> int:
    """Return the experts of a layer of which a rank has weights, or parts of them."""
    ranks = 1 if config.moe.enable_expert_tensor_parallelism else config.parallel.model_parallel_size
    return config.moe.moe_num_experts // ranks // config.parallel.moe_expert_parallel_size


def dispatched(config: Config, assumed: Assumptions) -> float:
    """Return how many copies of a token a rank has per layer, because experts process it."""
    return share(config) * copies(config, assumed)


def copies(config: Config, assumed: Assumptions) -> float:
    """Return how many copies of a token a rank has in a layer with experts."""
    ranks = 1 if config.moe.enable_expert_tensor_parallelism else config.parallel.model_parallel_size
    return config.moe.moe_top_k * imbalance(config, assumed) / ranks


def stored(config: Config, tokens: int, number_size: int, assumed: Assumptions) -> int:
    """Return the bytes per layer besides those of the networks: each expert's input and output, and the routing."""
    hidden = config.shape.hidden_size
    indices = 5 if config.parallel.moe_expert_parallel_size > 1 else 3
    copies = dispatched(config, assumed) * (2 * hidden * number_size + indices * INDEX + SINGLE)
    in_fp32 = hidden * SINGLE if number_size != SINGLE else 0  # the router's input
    routing = ROUTER_TENSORS * config.moe.moe_num_experts * SINGLE + in_fp32
    return int(tokens * (copies + share(config) * routing))
