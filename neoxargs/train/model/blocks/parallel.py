"""Attention and feed-forward side by side: GPT-J, GPT-NeoX, Pythia."""

from __future__ import annotations

from torch import nn

from neoxargs.config.config import Config
from neoxargs.facts.model import has_experts, mlp_norm_options
from neoxargs.train.model.attention import SelfAttention
from neoxargs.train.model.bias import RelativeBias
from neoxargs.train.model.documents import LayerInput, pack, unpack
from neoxargs.train.model.experts.layer import Experts
from neoxargs.train.model.mlp import FeedForward
from neoxargs.train.model.norm import norm, normed
from neoxargs.train.model.shared import Shared
from neoxargs.train.ops.fused import DropoutAdd
from neoxargs.train.parallel.communicate import leave_region
from neoxargs.train.parallel.layers import Weights
from neoxargs.train.process.mesh import ALONE


class ParallelTransformerBlock(nn.Module):
    """Attention and feed-forward of the same input, with one residual connection: hidden_BSD -> hidden_BSD.

    Each has a norm of its own (GPT-NeoX), or both have one (GPT-J, `gpt_j_tied`). Tensor parallel ranks sum the two
    outputs in one all-reduce: attention and feed-forward return this rank's summands. With sequence parallelism S is a
    shard.
    """

    def __init__(
        self, config: Config, weights: Weights, shared: Shared, layer: int = 0, relative: RelativeBias | None = None
    ) -> None:
        super().__init__()
        width, self.tensor, self.sequence = config.shape.hidden_size, weights.ranks.tensor, weights.ranks.sequence
        self.recompute = shared.recompute
        #: Whether both halves return this rank's summand, and the block sums once.
        self.sums = self.tensor.size > 1
        self.input_layernorm = norm(width, config.norm, self.sequence)
        self.attention = SelfAttention(config, weights.at("attention"), shared, layer, relative, partial=self.sums)
        tied = config.attention.gpt_j_tied
        self.post_attention_layernorm = None if tied else norm(width, mlp_norm_options(config), self.sequence)
        feed_forward = Experts if has_experts(config, layer) else FeedForward
        self.mlp = feed_forward(config, weights.at("mlp"), shared, partial=self.sums)
        rate = config.regularization.hidden_dropout
        #: Of attention's summand, to which the residual is added only after the sum.
        self.dropout = nn.Dropout(rate)
        # Summands cover all tokens of the sequence, and every rank must drop the same elements of them.
        self.add = DropoutAdd(rate, config.fusion.bias_dropout_fusion, ALONE if self.sums else self.sequence)

    def forward(self, inputs: LayerInput) -> LayerInput:
        hidden_BSD, starts_BS = unpack(inputs)
        with self.recompute.layer():
            normed_BSD = normed(self.input_layernorm, hidden_BSD, self.recompute)
            attended_BSD = self.attention(normed_BSD, starts_BS)
            y_BSD = self.dropout(attended_BSD) if self.sums else self.add(attended_BSD, hidden_BSD)
            if self.post_attention_layernorm is not None:
                normed_BSD = normed(self.post_attention_layernorm, hidden_BSD, self.recompute)
            y_BSD = self.add(self.mlp(normed_BSD), y_BSD)
            if self.sums:
                y_BSD = hidden_BSD + leave_region(y_BSD, self.tensor, self.sequence)
        return pack(y_BSD, starts_BS)
