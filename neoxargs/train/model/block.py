"""One transformer layer.

Its name matters: `pipe_partition_method: type:transformer|mlp` deals layers to pipeline stages by their class's name.
"""

from __future__ import annotations

from torch import Tensor, nn

from neoxargs.resolve.config import Config
from neoxargs.train.model.attention import SelfAttention
from neoxargs.train.model.layers import Make
from neoxargs.train.model.mlp import FeedForward
from neoxargs.train.model.norm import norm


class TransformerBlock(nn.Module):
    """(batch, seq, hidden) -> (batch, seq, hidden): attention and feed-forward, each added to what it reads.

    With `gpt_j_residual` both read the layer's input, through norms of their own unless `gpt_j_tied`.
    """

    def __init__(self, config: Config, make: Make) -> None:
        super().__init__()
        shape, init, regularization = config.shape, config.init, config.regularization
        self.side_by_side = config.attention.gpt_j_residual
        self.input_layernorm = norm(shape.hidden_size, config.norm)
        self.attention = SelfAttention(
            shape, config.embedding, config.attention, init, regularization, make.at("attention")
        )
        tied = self.side_by_side and config.attention.gpt_j_tied
        self.post_attention_layernorm = None if tied else norm(shape.hidden_size, config.norm)
        self.mlp = FeedForward(shape, config.mlp, config.fusion, init, make.at("mlp"))
        self.dropout = nn.Dropout(regularization.hidden_dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        entered = self.input_layernorm(hidden)
        attended = hidden + self.dropout(self.attention(entered))
        if self.post_attention_layernorm is not None:
            entered = self.post_attention_layernorm(hidden if self.side_by_side else attended)
        return attended + self.dropout(self.mlp(entered))  # type: ignore[no-any-return]
