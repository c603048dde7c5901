"""The router of a mixture of experts: the experts of each token, their weights, and the losses that balance them.

Everything is computed in fp32, equally on every tensor parallel rank. Context parallel ranks have different tokens of
the micro batch: what balances experts counts those of all of them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neoxargs.facts.model import SINKHORN_ROUNDS
from neoxargs.registry.moe import Moe
from neoxargs.train.losses.added_losses import Term
from neoxargs.train.ops.dispatch import Choice, pairs_of_experts
from neoxargs.train.parallel.communicate import gather_replicated, register_gradient_sum, sum_over_ranks
from neoxargs.train.parallel.init import Initializer
from neoxargs.train.parallel.layers import Weights
from neoxargs.train.parallel.tensor_rng import different_on_each_rank
from neoxargs.train.process.mesh import ALONE, Axis

#: Names of the terms of the loss, as they are logged.
BALANCE, Z, LOAD = "moe/load_balancing_loss", "moe/z_loss", "moe/max_load"


class Router(nn.Module):
    """Scores of the experts for each token: hidden_BSD -> logits_TE, in fp32.

    With sequence parallelism S is a shard, and T are all tokens of the context parallel rank.
    """

    def __init__(self, options: Moe, hidden: int, method: Initializer, weights: Weights) -> None:
        super().__init__()
        self.jitter, self.sequence = options.moe_jitter_eps or 0.0, weights.ranks.sequence
        self.weight = weights.parameter("weight", (options.moe_num_experts, hidden), method)
        register_gradient_sum([self.weight], self.sequence)

    def forward(self, hidden_BSD: Tensor) -> Tensor:
        # As in Switch Transformers (section 2.4): the softmax over experts is sensitive to rounding.
        hidden_BSD = hidden_BSD.float()
        if self.training and self.jitter:
            with different_on_each_rank(self.sequence, hidden_BSD.device):
                hidden_BSD = hidden_BSD * torch.empty_like(hidden_BSD).uniform_(1 - self.jitter, 1 + self.jitter)
        logits_BSE = gather_replicated(F.linear(hidden_BSD, self.weight.float()), self.sequence)
        return logits_BSE.flatten(0, -2)


def choose(logits_TE: Tensor, options: Moe, training: bool, context: Axis = ALONE) -> Choice:
    """Choose each token's experts. context: the ranks with the micro batch's other tokens.

    topk: the experts with the highest probabilities, which are the weights. sinkhorn: the same, but in training the
    experts are those of the balanced assignment that is closest to the logits; with one expert per token its weight is
    a sigmoid, so that the weight has a gradient from the expert's own logit.
    """
    count = options.moe_top_k
    balanced = options.moe_router_type == "sinkhorn"
    scores_TE = torch.sigmoid(logits_TE) if balanced and count == 1 else logits_TE.softmax(-1)
    # No gradient: the balanced assignment only chooses the experts; the weights are taken from `scores_TE`.
    ranked_TE = sinkhorn(logits_TE.detach(), context) if balanced and training else scores_TE
    experts = ranked_TE.topk(count, dim=-1).indices
    weights = scores_TE.gather(-1, experts)
    if options.moe_normalize_expert_weights:
        weights = weights / weights.sum(-1, keepdim=True)
    return Choice(experts, weights)


def sinkhorn(logits_TE: Tensor, context: Axis = ALONE, rounds: int = SINKHORN_ROUNDS) -> Tensor:
    """Scale the rows and columns of exp(logits) until rows have equal sums and columns, too: those of all ranks.

    Sinkhorn & Knopp 1967; for routing, Clark et al. 2022 (arXiv:2202.01169, appendix B). All entries sum to 1.
    """
    tokens, experts = len(logits_TE) * context.size, logits_TE.shape[1]
    costs_TE = (logits_TE - logits_TE.amax(-1, keepdim=True)).exp()  # a factor on a row does not change the result
    columns_E = costs_TE.new_ones(experts)
    for _ in range(rounds):
        rows_T = 1 / (tokens * (costs_TE @ columns_E)).clamp(min=1e-30)
        columns_E = 1 / (experts * sum_over_ranks(rows_T @ costs_TE, context)).clamp(min=1e-30)
    return rows_T[:, None] * costs_TE * columns_E


def added_losses(logits_TE: Tensor, experts: Tensor, options: Moe, context: Axis = ALONE) -> dict[str, Term]:
    """Return terms of the loss whose means over the context parallel ranks are those of all tokens of the micro batch:
    load balance and z, and for the log the load of the fullest expert.

    load balance: experts x sum over experts of (share of the assignments x mean probability), 1 if balanced (Fedus et
    al. 2021, "Switch Transformers", arXiv:2101.03961, equation 4). z: mean of log(sum exp logits)^2 (Zoph et al. 2022,
    "ST-MoE", arXiv:2202.08906, equation 5). The load is relative to the even share.
    """
    count = options.moe_num_experts
    # Counts have no gradient; that of `balance` flows through the mean probabilities.
    counts_E = sum_over_ranks(pairs_of_experts(experts.flatten(), count), context)
    shares_E = counts_E / (experts.numel() * context.size)
    balance = count * (shares_E * logits_TE.softmax(-1).mean(0)).sum()
    return {
        BALANCE: Term(balance, options.moe_aux_loss_coeff),
        Z: Term(logits_TE.logsumexp(-1).square().mean(), options.moe_z_loss_coeff),
        LOAD: Term(shares_E.max() * count, 0.0),
    }
