"""A layer's feed-forward as a mixture of experts.

The experts' matrices are stacked: (experts, outputs, inputs). Tensor parallel ranks divide the experts among them, or
with `enable_expert_tensor_parallelism` every expert's width. Both ways each rank has all tokens and computes a summand
of each token's output, so that a layer communicates as much as a dense one: one sum over the ranks.

With `moe_expert_parallel_size`, data parallel ranks divide the experts of their tensor parallel rank among them. They
have different tokens, which they send to each other (exchange.py): of other samples, or with context parallelism of
other positions.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neoxargs.config.config import Config
from neoxargs.facts.model import GATED, has_dense_network, layers_with_experts, mlp_width
from neoxargs.train.model.experts.router import BALANCE, LOAD, Router, Z, added_losses, choose
from neoxargs.train.model.mlp import FeedForward, feed_forward_activation
from neoxargs.train.model.shared import Shared
from neoxargs.train.ops.dispatch import (
    Assignments,
    Choice,
    RowsOfTokens,
    assign,
    capacity,
    grouped_product,
    part,
    within_capacity,
)
from neoxargs.train.parallel.communicate import (
    copy_to_ranks,
    enter_region,
    gather_positions,
    gather_replicated,
    leave_region,
    register_gradient_sum,
)
from neoxargs.train.parallel.exchange import Exchange
from neoxargs.train.parallel.init import Initializer, initializer, zeros
from neoxargs.train.parallel.layers import Weights


class Experts(nn.Module):
    """Mixture of experts: normed_BSD -> update_BSD. The experts have no biases."""

    def __init__(self, config: Config, weights: Weights, shared: Shared, partial: bool = False) -> None:
        super().__init__()
        self.options = config.moe
        self.tensor, self.sequence = weights.ranks.tensor, weights.ranks.sequence
        self.positions = weights.ranks.positions
        self.partial, self.losses = partial, shared.losses
        method = initializer(config.init.init_method, config.init, config.shape)
        self.router = Router(self.options, config.shape.hidden_size, method, weights.at("router"))
        self.experts = Networks(config, weights.at("experts"), shared)
        width = self.options.moe_num_shared_experts * mlp_width(config.shape, config.mlp)
        #: Experts of all tokens ("shared experts"), one feed-forward network; its summands join those of the others.
        self.shared = FeedForward(config, weights.at("shared"), shared, True, width, bias=False) if width else None
        residual = has_dense_network(config)
        self.residual = Residual(config, weights.at("residual"), shared, method) if residual else None

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Return the sum of the experts' outputs, or this rank's summand of it if `partial`.

        With sequence parallelism, S is a shard in x_BSD and the output.
        """
        logits_TE = self.router(x_BSD)
        choice = choose(logits_TE, self.options, self.training, self.positions.context)
        # Each rank has only some of the experts, so its gradient of x is a summand.
        whole_BSD = enter_region(x_BSD, self.tensor, self.sequence)
        tokens_TD = whole_BSD.flatten(0, -2)
        # Each rank's experts have gradients for the weights of their own outputs only.
        choice = choice._replace(weights=copy_to_ranks(choice.weights, self.tensor))
        kept = self._within_capacity(choice, len(x_BSD))
        assignments = part(assign(choice, self.options.moe_num_experts, kept), self.experts.local)
        y_BSD = self.experts(tokens_TD, assignments).view_as(whole_BSD)
        if self.shared is not None:
            # From x_BSD, not `whole_BSD`: its first layer gathers the sequence, or sums the gradient, itself.
            y_BSD = y_BSD + self.shared(x_BSD)
        if self.residual is not None:
            y_BSD = self.residual(x_BSD, y_BSD)
        y_BSD = y_BSD if self.partial else leave_region(y_BSD, self.tensor, self.sequence)
        # Also the first pass of reentrant checkpointing, which has no graph: the terms are added when the layer is
        # recomputed.
        if not torch.is_grad_enabled():
            return y_BSD
        return self.losses.add(y_BSD, added_losses(logits_TE, choice.experts, self.options, self.positions.context))

    def _within_capacity(self, choice: Choice, samples: int) -> Tensor | None:
        """Return which pairs their experts have room for, of the tokens of all ranks: (T, top_k); None: all."""
        limit = capacity(self.options, len(choice.experts) * self.positions.context.size, self.training)
        if limit is None:
            return None
        by_sample = (x.detach().unflatten(0, (samples, -1)) for x in choice)
        of_all = Choice(*(gather_positions(x, self.positions).flatten(0, 1) for x in by_sample))
        kept = within_capacity(of_all, self.options.moe_num_experts, limit)
        return self.positions.of(kept.unflatten(0, (samples, -1))).flatten(0, 1)


class Networks(nn.Module):
    """The networks of this rank's experts, or this rank's share of the width of all experts."""

    def __init__(self, config: Config, weights: Weights, shared: Shared) -> None:
        super().__init__()
        count, narrow, wide = config.moe.moe_num_experts, config.shape.hidden_size, mlp_width(config.shape, config.mlp)
        by_width = config.moe.enable_expert_tensor_parallelism
        size = count if by_width else count // weights.ranks.tensor.size
        first = 0 if by_width else weights.ranks.tensor.rank * size
        #: The experts of this tensor parallel rank, which the expert parallel ranks divide among them.
        self.local = range(first, first + size)
        self.axis = weights.ranks.expert
        parts = 2 if config.mlp.activation in GATED else 1
        method_in = initializer(config.init.init_method, config.init, config.shape)
        method_out = initializer(config.init.output_layer_init_method, config.init, config.shape)
        # Split by experts: dimension 0 in one part. By width: of the first matrix the outputs, of the second the
        # inputs.
        first_split, second_split = ((1, parts), (2, 1)) if by_width else ((0, 1), (0, 1))
        self.dense_h_to_4h = Matrices(
            weights.at("dense_h_to_4h"), (count, parts * wide, narrow), method_in, first_split
        )
        self.dense_4h_to_h = Matrices(weights.at("dense_4h_to_h"), (count, narrow, wide), method_out, second_split)
        self.recompute = shared.recompute
        self.activation = feed_forward_activation(config, shared.recompute)

    def forward(self, tokens_TD: Tensor, assignments: Assignments) -> Tensor:
        """Return the weighted sums of the experts' outputs, (T, D)."""
        rows = RowsOfTokens.of(assignments.tokens, len(tokens_TD))
        rows_RD = rows.copies(tokens_TD)
        if self.axis.size == 1:
            y_RD = self._outputs(rows_RD, assignments.counts)
        else:
            exchange = Exchange(assignments.counts, self.axis)
            y_RD = exchange.back(self._outputs(exchange.there(rows_RD), exchange.counts))
        return rows.weighted_sums(y_RD, assignments.weights)

    def _outputs(self, rows_RD: Tensor, counts_E: Tensor) -> Tensor:
        """Return the experts' outputs, (R, D), for rows that are sorted by expert."""
        wide_RF = self.dense_h_to_4h(rows_RD, counts_E)
        return self.dense_4h_to_h(self.recompute(self.activation, wide_RF), counts_E)  # type: ignore[no-any-return]


class Matrices(nn.Module):
    """One matrix of each expert: (experts, outputs, inputs). split: (dimension, parts), as of `Weights.parameter`."""

    def __init__(
        self, weights: Weights, shape: tuple[int, int, int], method: Initializer, split: tuple[int, int]
    ) -> None:
        super().__init__()
        self.weight = weights.parameter("weight", shape, method, *split, by_expert=True)

    def forward(self, rows_RD: Tensor, counts_E: Tensor) -> Tensor:
        """Multiply rows that are sorted by expert, `counts_E` of each; D and F are any width."""
        return grouped_product(rows_RD, self.weight, counts_E)


class Residual(nn.Module):
    """A dense network in parallel to the experts: y = c0 x experts + c1 x dense, c a softmax of a linear layer.

    Residual-MoE of Rajbhandari et al. 2022, "DeepSpeed-MoE" (arXiv:2201.05596, section 4.1.1).
    """

    def __init__(self, config: Config, weights: Weights, shared: Shared, method: Initializer) -> None:
        super().__init__()
        self.tensor, self.sequence = weights.ranks.tensor, weights.ranks.sequence
        self.dense = FeedForward(config, weights.at("dense"), shared, partial=True)
        self.weight = weights.parameter("weight", (2, config.shape.hidden_size), method)
        self.bias = weights.parameter("bias", (2,), zeros)
        register_gradient_sum([self.weight, self.bias], self.sequence)

    def forward(self, x_BSD: Tensor, experts_BSD: Tensor) -> Tensor:
        """Return this rank's summand of y, from the layer's input and the rank's summand of the experts' output."""
        shares_BS2 = gather_replicated(F.linear(x_BSD, self.weight, self.bias).softmax(-1), self.sequence)
        # Each rank multiplies its summands with the shares, so their gradients are summed.
        shares_BS2 = copy_to_ranks(shares_BS2, self.tensor)
        return experts_BSD * shares_BS2[..., :1] + self.dense(x_BSD) * shares_BS2[..., 1:]  # type: ignore[no-any-return]


def terms(config: Config) -> tuple[str, ...]:
    """Return the names of the terms that the layers add to the loss."""
    return (BALANCE, Z, LOAD) if layers_with_experts(config) else ()
