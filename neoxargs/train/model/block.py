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
    """(batch, seq, hidden) -> (batch, seq, hidden): attention and feed-forward, each added to what it reads."""

    def __init__(self, config: Config, make: Make) -> None:
        super().__init__()
        shape, init, regularization = config.shape, config.init, config.regularization
        self.input_layernorm = norm(shape.hidden_size, config.norm)
        self.attention = SelfAttention(shape, config.attention, init, regularization, make.at("attention"))
        self.post_attention_layernorm = norm(shape.hidden_size, config.norm)
        self.mlp = FeedForward(shape, config.mlp, config.fusion, init, make.at("mlp"))
        self.dropout = nn.Dropout(regularization.hidden_dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.dropout(self.attention(self.input_layernorm(hidden)))
        return hidden + self.dropout(self.mlp(self.post_attention_layernorm(hidden)))  # type: ignore[no-any-return]
