"""One transformer layer.

Its name matters: `pipe_partition_method: type:transformer|mlp` deals layers to pipeline stages by their class's name.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from neoxargs.resolve.config import Config
from neoxargs.train.kernels.fused import DropoutAdd
from neoxargs.train.model.attention import SelfAttention
from neoxargs.train.model.bias import RelativeBias
from neoxargs.train.model.documents import Carried, closed, opened
from neoxargs.train.model.mlp import FeedForward
from neoxargs.train.model.norm import norm
from neoxargs.train.parallel.communicate import leave_region
from neoxargs.train.parallel.make import Make
from neoxargs.train.process.mesh import ALONE


class TransformerBlock(nn.Module):
    """(batch, seq, hidden) -> (batch, seq, hidden): attention and feed-forward, each added to what it reads.

    With `gpt_j_residual` both read the layer's input, through norms of their own unless `gpt_j_tied`, and tensor
    parallel ranks add up both in one go. With
    `apply_residual_connection_post_layernorm` each is added to what it reads after the norm instead of before.
    """

    def __init__(self, config: Config, make: Make, layer: int = 0, relative: RelativeBias | None = None) -> None:
        super().__init__()
        shape, init, regularization = config.shape, config.init, config.regularization
        self.side_by_side = config.attention.gpt_j_residual
        self.normed_residual = config.norm.apply_residual_connection_post_layernorm
        self.tensor, self.shards = make.tensor, make.shards
        self.summed_together = self.side_by_side and self.tensor.size > 1
        self.input_layernorm = norm(shape.hidden_size, config.norm, self.shards)
        inside = replace(make, partial=self.summed_together)
        self.attention = SelfAttention(config, inside.at("attention"), layer, relative)
        tied = self.side_by_side and config.attention.gpt_j_tied
        self.post_attention_layernorm = None if tied else norm(shape.hidden_size, config.norm, self.shards)
        self.mlp = FeedForward(shape, config.mlp, config.fusion, init, inside.at("mlp"))
        self.dropout = nn.Dropout(regularization.hidden_dropout)
        # What is still to be summed is of all tokens, and every rank drops the same of it.
        shards = ALONE if self.summed_together else self.shards
        self.add = DropoutAdd(regularization.hidden_dropout, config.fusion.bias_dropout_fusion, shards)

    def forward(self, carried: Carried) -> Carried:
        hidden, starts = opened(carried)
        entered = self.input_layernorm(hidden)
        if self.summed_together:
            return closed(hidden + self._both(hidden, entered, starts), starts)
        attended = self.add(self.attention(entered, starts), entered if self.normed_residual else hidden)
        if self.post_attention_layernorm is not None:
            entered = self.post_attention_layernorm(hidden if self.side_by_side else attended)
        return closed(self.add(self.mlp(entered), entered if self.normed_residual else attended), starts)

    def _both(self, hidden: Tensor, entered: Tensor, starts: Tensor | None) -> Tensor:
        """Attention and feed-forward side by side, added up over the tensor parallel ranks."""
        attended = self.dropout(self.attention(entered, starts))
        if self.post_attention_layernorm is not None:
            entered = self.post_attention_layernorm(hidden)
        return leave_region(self.add(self.mlp(entered), attended), self.tensor, self.shards)
