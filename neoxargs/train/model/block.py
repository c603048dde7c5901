"""One transformer layer.

Its name matters: `pipe_partition_method: type:transformer|mlp` deals layers to pipeline stages by their class's name.
"""

from __future__ import annotations

from torch import nn

from neoxargs.resolve.config import Config
from neoxargs.train.model.attention import SelfAttention
from neoxargs.train.model.bias import RelativeBias
from neoxargs.train.model.documents import Carried, closed, opened
from neoxargs.train.model.fused import DropoutAdd
from neoxargs.train.model.layers import Make
from neoxargs.train.model.mlp import FeedForward
from neoxargs.train.model.norm import norm


class TransformerBlock(nn.Module):
    """(batch, seq, hidden) -> (batch, seq, hidden): attention and feed-forward, each added to what it reads.

    With `gpt_j_residual` both read the layer's input, through norms of their own unless `gpt_j_tied`. With
    `apply_residual_connection_post_layernorm` each is added to what it reads after the norm instead of before.
    """

    def __init__(self, config: Config, make: Make, layer: int = 0, relative: RelativeBias | None = None) -> None:
        super().__init__()
        shape, init, regularization = config.shape, config.init, config.regularization
        self.side_by_side = config.attention.gpt_j_residual
        self.normed_residual = config.norm.apply_residual_connection_post_layernorm
        self.input_layernorm = norm(shape.hidden_size, config.norm)
        self.attention = SelfAttention(config, make.at("attention"), layer, relative)
        tied = self.side_by_side and config.attention.gpt_j_tied
        self.post_attention_layernorm = None if tied else norm(shape.hidden_size, config.norm)
        self.mlp = FeedForward(shape, config.mlp, config.fusion, init, make.at("mlp"))
        self.add = DropoutAdd(regularization.hidden_dropout, config.fusion.bias_dropout_fusion)

    def forward(self, carried: Carried) -> Carried:
        hidden, starts = opened(carried)
        entered = self.input_layernorm(hidden)
        attended = self.add(self.attention(entered, starts), entered if self.normed_residual else hidden)
        if self.post_attention_layernorm is not None:
            entered = self.post_attention_layernorm(hidden if self.side_by_side else attended)
        return closed(self.add(self.mlp(entered), entered if self.normed_residual else attended), starts)
