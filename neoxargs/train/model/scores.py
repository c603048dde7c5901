"""From queries, keys and values to what each token gathers: in torch's fused kernels, flex_attention or separate steps.

These two compute the same: products of queries and keys, the bound, bias and mask, softmax, sum of values. A
mechanism that changes scores or probabilities is here, once for each of the two, and in `facts.attention.ScoreRule`.
The steps are Megatron's: scores in the model's precision, softmax in fp32.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neoxargs.config.config import Config
from neoxargs.facts.attention import score_rule
from neoxargs.train.ops import flex, varlen
from neoxargs.train.ops.mask_rule import MaskRule
from neoxargs.train.ops.sdpa import attend, repeat_heads, shared_causal_mask
from neoxargs.train.ops.tables import Tables
from neoxargs.train.parallel.layers import Weights
from neoxargs.train.parallel.tensor_rng import different_on_each_rank


class Scores(nn.Module):
    """From query_BNSH, key_BKCH and value_BKCH of one layer to context_BNSH."""

    def __init__(self, config: Config, weights: Weights, layer: int, mask_rule: MaskRule, tables: Tables) -> None:
        """tables: where the masks of a model are kept."""
        super().__init__()
        self.rule, self.mask_rule, self.tables = score_rule(config, layer), mask_rule, tables
        self.tensor = weights.ranks.tensor

    def forward(
        self, query_BNSH: Tensor, key_BKCH: Tensor, value_BKCH: Tensor, mask: Tensor | None, dropout: float
    ) -> Tensor:
        """Use the fused kernels if they can compute the scores. mask: as of `sdpa.attend`."""
        half = query_BNSH.dtype != torch.float32
        random = different_on_each_rank(self.tensor, query_BNSH.device) if dropout else nullcontext()
        with random:
            if self.rule.fused and not self.rule.asks_for_steps(half, masked=mask is not None):
                return attend(query_BNSH, key_BKCH, value_BKCH, mask, dropout)
            if mask is None:
                mask = shared_causal_mask(query_BNSH.shape[2], query_BNSH.device, self.tables)
            return self.in_steps(query_BNSH, key_BKCH, value_BKCH, mask, dropout)

    def in_steps(
        self, query_BNSH: Tensor, key_BKCH: Tensor, value_BKCH: Tensor, mask: Tensor, dropout: float
    ) -> Tensor:
        """Store the scores."""
        # Plain products have no notion of shared heads.
        key_BKCH, value_BKCH = repeat_heads(key_BKCH, value_BKCH, query_BNSH.shape[1])
        # Divide before the product, because the product overflows in fp16.
        scores_BNSC = (query_BNSH / (query_BNSH.shape[-1] ** 0.5 * self.rule.divisor)) @ key_BKCH.transpose(-1, -2)
        # In fp32 from here on, so the layer's divisor can be undone without overflow.
        scores_BNSC = scores_BNSC.float() * self.rule.divisor
        if bound := self.rule.softcap:
            scores_BNSC = (scores_BNSC / bound).tanh() * bound
        scores_BNSC = scores_BNSC.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores_BNSC + mask
        context_BNSH = F.dropout(scores_BNSC.softmax(-1).to(value_BKCH.dtype), dropout) @ value_BKCH
        return context_BNSH

    def in_flex(self, query_BNSH: Tensor, key_BKCH: Tensor, value_BKCH: Tensor, starts_BS: Tensor | None) -> Tensor:
        """Let flex_attention compute scores, mask and bias block by block.

        starts_BS: the position where each token's document begins; None if attention crosses documents.
        """
        rule, tables, device = self.mask_rule, self.tables, query_BNSH.device
        context_BNSH: Tensor = flex.kernel(query_BNSH.is_cuda)(
            query_BNSH,
            key_BKCH,
            value_BKCH,
            score_mod=flex.bounded(self.rule.softcap, flex.alibi_change(rule, device, tables)),
            block_mask=flex.block_mask(rule, query_BNSH.shape[2], device, starts_BS, tables),
            enable_gqa=key_BKCH.shape[1] < query_BNSH.shape[1],
        )
        return context_BNSH

    def in_varlen(self, query_BNSH: Tensor, key_BKSH: Tensor, value_BKSH: Tensor, starts_BS: Tensor | None) -> Tensor:
        """Take documents as separate sequences. Arguments as of `in_flex`."""
        batch, _, seq, _ = query_BNSH.shape
        bounds = varlen.document_bounds(batch, seq, query_BNSH.device, starts_BS, self.tables)
        return varlen.attend(query_BNSH, key_BKSH, value_BKSH, self.mask_rule.window, bounds)
