"""Sizes of the weights of the model, and of their shards on a tensor parallel rank.

The tensors are those of `train/model`; a test compares them one by one. Sharding follows Shoeybi et al. 2019
(arXiv:1909.08053): in each pair of matrices the first is sharded by outputs and the second by inputs; the bias of the
second and all norms are replicated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from neoxargs.config.config import Config
from neoxargs.facts.attention import attention_weights
from neoxargs.facts.layer_kinds import has_attention, layer_kind
from neoxargs.facts.lora import Target, targets
from neoxargs.facts.model import (
    RECURRENCES,
    has_dense_network,
    has_experts,
    head_norms,
    head_norms_size,
    is_reward_model,
    mlp_rows,
    mlp_width,
    norm_size,
    norms_of_block,
    output_rows,
    weights_of_layers,
)

#: Part of the model: the experts of which each token is processed by some.
EXPERTS = "experts"


class Weight(NamedTuple):
    """A weight tensor, or several that are alike."""

    part: str
    numel: int
    """Number of elements of one of them before tensor parallel sharding."""
    sharded: bool = True
    """Whether it is sharded among the tensor parallel ranks, or replicated on each."""
    number: int = 1
    """How many tensors."""

    def on_rank(self, tensor: int, expert: int = 1) -> int:
        """Elements on each of `tensor` tensor parallel ranks. `expert` data parallel ranks share the experts."""
        of_one = self.numel // tensor if self.sharded else self.numel
        return self.number * (of_one // (expert if self.part == EXPERTS else 1))


def block(config: Config, layer: int) -> list[Weight]:
    """Return the weights of one transformer layer."""
    if not has_attention(config, layer):
        recurrence = RECURRENCES[layer_kind(config, layer)]
        inside = [Weight("recurrent", tensor.numel, tensor.sharded) for tensor in recurrence.tensors(config)]
        return [*inside, *[norm(config)] * recurrence.norms(config)]
    feed_forward = _experts(config) if has_experts(config, layer) else _mlp(config)
    return [*_attention(config), *feed_forward, *_norms(config)]


def blocks(config: Config, layers: range) -> list[Weight]:
    """Return the weights of consecutive layers; those that layers share only once."""
    used = {layer: kind_of_block(config, layer) for layer in first_uses(config, layers)}
    example, counts = {kind: layer for layer, kind in used.items()}, Counter(used.values())
    return [weight._replace(number=counts[kind]) for kind, layer in example.items() for weight in block(config, layer)]


def kind_of_block(config: Config, layer: int) -> tuple[str, bool]:
    """Return what distinguishes the weights of a layer from those of another: its kind, and whether it has experts."""
    return layer_kind(config, layer), has_experts(config, layer)


def first_uses(config: Config, layers: range) -> list[int]:
    """Return the layers that first use the weights of consecutive layers: the same, unless layers share weights."""
    used = weights_of_layers(config.shape)
    return sorted({used.index(index) for index in used[layers.start : layers.stop]})


def token_table(config: Config, rows: int) -> Weight:
    return Weight("embedding", rows * config.shape.hidden_size)


def output_layer(config: Config, rows: int) -> Weight:
    """Return the matrix of the output layer, or the head of a reward model, which is replicated."""
    rewards = is_reward_model(config)
    return Weight("output", output_rows(config, rows) * config.shape.hidden_size, sharded=not rewards)


def position_table(config: Config) -> list[Weight]:
    """Return the table of learned position embeddings, which is replicated, or []."""
    if config.embedding.pos_emb != "learned":
        return []
    rows = config.shape.max_position_embeddings + config.embedding.opt_pos_emb_offset
    return [Weight("positions", rows * config.shape.hidden_size, sharded=False)]


def relative_table(config: Config) -> list[Weight]:
    """Return the bias table of `rpe` (buckets, heads), which all layers share, or []."""
    if config.embedding.pos_emb != "rpe":
        return []
    return [Weight("positions", config.embedding.rpe_num_buckets * config.shape.num_attention_heads)]


def norm(config: Config) -> Weight:
    """Return a norm over the residual stream: of a layer, or the one after the last layer."""
    return Weight("norms", norm_size(config), sharded=False)


def beside_frozen_model(config: Config, layers: range, first: bool) -> list[Weight]:
    """Return what is trained beside a frozen model: adapters of consecutive layers, or on the first stage a prompt."""
    if config.soft_prompt.enabled:
        size = config.soft_prompt.num_tokens * config.shape.hidden_size
        return [Weight("soft prompt", size, sharded=False)] if first else []
    rank = config.lora.rank
    return [weight for target in targets(config) for weight in _adapters(target, rank)] * len(layers)


def _adapters(target: Target, rank: int) -> Iterator[Weight]:
    for adapter in target.adapted:
        yield Weight("adapters", rank * target.inputs, sharded=target.cuts_inputs)
        yield Weight("adapters", target.rows(adapter) * rank, sharded=not target.cuts_inputs)


def _attention(config: Config) -> Iterator[Weight]:
    return (Weight("attention", weight.numel, weight.sharded) for weight in attention_weights(config))


def _mlp(config: Config) -> Iterator[Weight]:
    width = mlp_width(config.shape, config.mlp)
    return _pair("feed-forward", mlp_rows(config), width, config.shape.hidden_size, config.mlp.use_bias_in_mlp)


def _experts(config: Config) -> Iterator[Weight]:
    moe, hidden, width = config.moe, config.shape.hidden_size, mlp_width(config.shape, config.mlp)
    yield Weight("router", moe.moe_num_experts * hidden, sharded=False)
    # In both ways of dividing the experts among the tensor parallel ranks, each holds an equal part of the elements.
    yield Weight(EXPERTS, moe.moe_num_experts * mlp_rows(config) * hidden)
    yield Weight(EXPERTS, moe.moe_num_experts * hidden * width)
    if moe.moe_num_shared_experts:
        shared = moe.moe_num_shared_experts
        yield from _pair("feed-forward", shared * mlp_rows(config), shared * width, hidden, biased=False)
    if has_dense_network(config):
        yield from _mlp(config)
        yield Weight("router", 2 * hidden, sharded=False)
        yield Weight("router", 2, sharded=False)


def _pair(part: str, rows: int, inner: int, hidden: int, biased: bool) -> Iterator[Weight]:
    """Yield two linear layers: hidden -> rows, sharded by outputs, and inner -> hidden, sharded by inputs.

    biased: whether they have biases.
    """
    yield Weight(part, rows * hidden)
    yield Weight(part, hidden * inner)
    if biased:
        yield Weight(part, rows)
        yield Weight(part, hidden, sharded=False)


def _norms(config: Config) -> list[Weight]:
    kind = head_norms(config.norm)
    in_attention = [Weight("norms", head_norms_size(config), kind == "all_heads")] if kind else []
    return [norm(config)] * norms_of_block(config) + in_attention
