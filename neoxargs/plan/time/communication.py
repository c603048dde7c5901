"""Messages of one micro batch on a rank of a pipeline stage: in tensor, context and expert groups, between stages.

They are the calls of `train/parallel/communicate.py`, `train/losses/cross_entropy.py`, `train/parallel/exchange.py` and
DeepSpeed's pipeline engine (`runtime/pipe/engine.py`), which between stages sends each tensor parallel rank's share and
gathers it on arrival (Narayanan et al. 2021, arXiv:2104.04473, section 4.1). Without: messages once per step, and
integers that describe a tensor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Literal, NamedTuple

from neoxargs.config.config import Config
from neoxargs.facts.layer_kinds import has_attention
from neoxargs.facts.layout import Layout
from neoxargs.facts.model import SINKHORN_ROUNDS, has_experts, head_norms, tokens_at_once
from neoxargs.plan.given.assumptions import SINGLE
from neoxargs.plan.memory import experts, recurrent
from neoxargs.plan.memory.activation_sizes import ActivationSizes
from neoxargs.plan.memory.activations import recomputed_groups, stops_early
from neoxargs.plan.memory.stages import Stage

Operator = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send", "recv"]


class Message(NamedTuple):
    """One kind of message: the operator, and the bytes of the tensor on each rank; of a collective, of the whole."""

    operator: Operator
    size: int


#: Message -> how often a micro batch sends it.
Messages = Counter[Message]

#: What a region's border costs in both passes together: with sequence parallelism, and without.
SHARDED: tuple[Operator, ...] = ("all_gather", "reduce_scatter")
SUMMED: tuple[Operator, ...] = ("all_reduce",)


def tensor_messages(sizes: ActivationSizes, stage: Stage, rows: int) -> Messages:
    """Return the collectives of the tensor parallel ranks of a stage. rows: of the padded vocabulary."""
    config = sizes.config
    if sizes.tensor == 1:
        return Counter()
    messages: Messages = Counter()
    for operator, count in _of_layers(config, len(stage.layers)):
        messages[Message(operator, sizes.hidden)] += count
    for operator in _at_the_ends(config, stage):
        messages[Message(operator, sizes.hidden)] += 1
    if head_norms(config.norm) == "all_heads":  # sums of squares: of queries and of keys, in each pass
        passes = 3 if recomputed_groups(config, len(stage.layers)) else 2
        messages[Message("all_reduce", sizes.tokens * SINGLE)] += 2 * passes * len(stage.layers)
    if stage.last:
        # In the loss, each chunk of tokens is reduced by itself (train/losses/cross_entropy.py).
        at_once = tokens_at_once(sizes.assumed.most_logits(sizes.kind), rows // sizes.tensor)
        slices, rest = divmod(sizes.tokens, at_once)
        for tokens, count in ((at_once, slices), (rest, min(rest, 1))):  # the largest logit, and two sums, of each
            messages[Message("all_reduce", tokens * SINGLE)] += count
            messages[Message("all_reduce", 2 * tokens * SINGLE)] += count
    return +messages


def expert_messages(sizes: ActivationSizes, stage: Stage) -> Messages:
    """Return the exchanges of tokens between the ranks that divide the experts, in a micro batch, of the busiest one.

    A layer sends each token's copies to the ranks of its experts and the outputs back, in both passes, and first the
    number of copies of each expert.
    """
    config = sizes.config
    layers = sum(has_experts(config, layer) for layer in stage.layers)
    if config.parallel.moe_expert_parallel_size == 1 or not layers:
        return Counter()
    forward = 2 if recomputed_groups(config, len(stage.layers)) else 1
    copies = int(sizes.tokens * experts.copies(config, sizes.assumed))
    return Counter({
        Message("all_to_all", copies * config.shape.hidden_size * sizes.number_size): 2 * (forward + 1) * layers,
        Message("all_to_all", config.moe.moe_num_experts * experts.INDEX): forward * layers,
    })  # fmt: skip


class ContextMessages(NamedTuple):
    """Those of a micro batch, by the ranks that send them to each other."""

    heads: Messages
    """Among the ranks that exchange heads."""
    ring: Messages
    """Between neighbours in a ring."""
    all_ranks: Messages
    """Among all context parallel ranks."""

    def sent(self, sizes: ActivationSizes) -> float:
        """Return the bytes that a rank sends."""
        among = bytes_sent(self.heads, sizes.other_heads) + bytes_sent(self.all_ranks, sizes.context)
        return among + bytes_sent(self.ring, 1)


def context_messages(sizes: ActivationSizes, stage: Stage) -> ContextMessages:
    """Return what the context parallel ranks send each other in a micro batch.

    Queries, keys and values are sent together, and what attention computes is sent back; their gradients likewise. In a
    ring, each rank passes on the keys and values of all others, and in the backward pass also gradients of them in
    fp32, which return to their own rank.
    """
    exchanged: Messages = Counter()
    around: Messages = Counter()
    if sizes.context == 1:
        return ContextMessages(exchanged, around, Counter())
    queries, keys, layers = sizes.queries, sizes.keys, sum(has_attention(sizes.config, each) for each in stage.layers)
    passes = 3 if recomputed_groups(sizes.config, len(stage.layers)) else 2
    if sizes.other_heads > 1:
        exchanged[Message("all_to_all", queries + 2 * keys)] += passes * layers
        exchanged[Message("all_to_all", queries)] += passes * layers
    if (ring := sizes.context // sizes.other_heads) > 1:
        around[Message("send", 2 * keys)] += passes * layers * (ring - 1)
        around[Message("send", 2 * keys // sizes.number_size * SINGLE)] += layers * ring
    return ContextMessages(exchanged, around, _states(sizes, stage, passes))


def router_messages(sizes: ActivationSizes, stage: Stage) -> Messages:
    """Return what the routers of experts tell those of the other context parallel ranks in a micro batch.

    The number of tokens of each expert, in each round of sinkhorn the sums that it balances, and of experts with a
    capacity each token's experts and their weights.
    """
    moe, layers = sizes.config.moe, sum(has_experts(sizes.config, layer) for layer in stage.layers)
    if sizes.context == 1 or not layers:
        return Counter()
    times = (2 if recomputed_groups(sizes.config, len(stage.layers)) else 1) * layers
    copies = sizes.tokens * sizes.context * moe.moe_top_k if moe.moe_token_dropping else 0
    rounds = SINKHORN_ROUNDS if moe.moe_router_type == "sinkhorn" else 0
    return +Counter({
        Message("all_reduce", moe.moe_num_experts * experts.INDEX): times,
        Message("all_reduce", moe.moe_num_experts * SINGLE): times * rounds,
        Message("all_gather", copies * experts.INDEX): times if copies else 0,
        Message("all_gather", copies * SINGLE): times if copies else 0,
    })  # fmt: skip


def _states(sizes: ActivationSizes, stage: Stage, passes: int) -> Messages:
    """Return what recurrent layers gather of all chunks: last inputs, and states, in the forward pass with decays."""
    rows, messages = sizes.rows * sizes.context, Counter[Message]()
    for found in (recurrent.memory(sizes.config, layer) for layer in stage.layers):
        if found:
            each = found.carried(sizes)
            messages[Message("all_gather", rows * each.inputs)] += passes * each.times
            messages[Message("all_gather", rows * (each.state + each.decay))] += passes - 1
            messages[Message("all_gather", rows * each.state)] += 1
    return messages


def pipeline_messages(sizes: ActivationSizes, stage: Stage) -> Messages:
    """Return what a rank exchanges with the stages before and after its own."""
    activation, gradient = (sizes.stream // (sizes.tensor if part else 1) for part in partitioned(sizes.config))
    messages: Messages = Counter()
    if not stage.first:
        messages += Counter((Message("recv", activation), Message("send", gradient)))
    if not stage.last:
        messages += Counter((Message("send", activation), Message("recv", gradient)))
    return messages


def bytes_sent(messages: Messages, ranks: int) -> float:
    """Return the bytes that each rank of a ring sends: an all-reduce is a reduce-scatter and an all-gather."""
    # (n - 1) / n of the tensor for each pass of a ring of n ranks; what is sent to one rank is sent whole.
    share = (ranks - 1) / ranks
    passes: dict[Operator, float] = {"all_reduce": 2 * share, "send": 1.0}
    return sum(size * count * passes.get(operator, share) for (operator, size), count in messages.items())


def partitioned(config: Config) -> tuple[bool, bool]:
    """Return whether activations, and whether gradients, are partitioned for their way between stages."""
    shared = config.parallel.model_parallel_size > 1
    return shared and config.pipeline.pipe_partitioned, shared and config.pipeline.grad_partitioned


def _of_layers(config: Config, layers: int) -> Iterator[tuple[Operator, int]]:
    """Yield the collectives of transformer layers, each of the residual stream.

    Two inputs enter the tensor parallel regions of a layer, and two outputs leave them, or one if attention and
    feed-forward are parallel. With sequence parallelism an input is gathered and an output scattered.
    """
    leaving = 1 if config.attention.gpt_j_residual else 2
    groups = recomputed_groups(config, layers)
    again = layers if groups else 0
    dropped = config.regularization.hidden_dropout and not config.attention.gpt_j_residual
    # a group's last sum is not computed again if nothing reads it
    summed = (layers + again) * leaving - (groups if stops_early(config) and not dropped else 0)
    if config.parallel.sequence_parallel:
        yield "all_gather", 2 * (layers + again) + 2 * layers + leaving * layers
        yield "reduce_scatter", summed + 2 * layers
    else:
        yield "all_reduce", summed + 2 * layers
    if config.recompute.partition_activations:
        yield "all_gather", groups


def _at_the_ends(config: Config, stage: Stage) -> Iterator[Operator]:
    """Yield the collectives of the embedding, of the loss, and of what arrives from other stages."""
    for _ in range(stage.first + stage.last):
        yield from SHARDED if config.parallel.sequence_parallel else SUMMED
    activations, gradients = partitioned(config)
    if Layout.of(config).pipe == 1:
        return
    if not stage.first and activations:
        yield "all_gather"
    if not stage.last:  # the output again, for the backward pass, and its gradient
        for _ in range(activations + gradients):
            yield "all_gather"
