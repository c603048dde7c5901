"""The model's entrance: tokens to vectors, and where each token stands.

Two layers rather than one, because a tied output layer on another pipeline stage needs the token table only.
"""

from __future__ import annotations

from torch import Tensor, nn

from neoxargs.registry.model import Embedding, Init, Shape
from neoxargs.registry.regularization import Regularization
from neoxargs.train.model.init import draw, first_rows
from neoxargs.train.model.layers import Make, VocabEmbedding
from neoxargs.train.model.loss import Vocabulary


class TokenEmbedding(nn.Module):
    """Tokens (batch, seq) -> (batch, seq, hidden)."""

    def __init__(self, vocabulary: Vocabulary, shape: Shape, init: Init, make: Make) -> None:
        super().__init__()
        method = first_rows(vocabulary.size, draw(init.init_method, init, shape))
        self.word_embeddings = VocabEmbedding(vocabulary.padded, shape.hidden_size, method, make.at("word_embeddings"))

    @property
    def weight(self) -> nn.Parameter:
        """(padded vocabulary / tensor ranks, hidden); the output layer's too, unless `no_weight_tying`."""
        return self.word_embeddings.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.word_embeddings(tokens)  # type: ignore[no-any-return]


class PositionEmbedding(nn.Module):
    """Adds what the residual stream is told about positions (`pos_emb`), then drops out."""

    def __init__(
        self, shape: Shape, embedding: Embedding, init: Init, regularization: Regularization, make: Make
    ) -> None:
        super().__init__()
        self.dropout = nn.Dropout(regularization.hidden_dropout)
        self.offset = embedding.opt_pos_emb_offset
        self.table: nn.Parameter | None = None
        if embedding.pos_emb == "learned":
            rows = shape.max_position_embeddings + self.offset
            method = draw(init.init_method, init, shape)
            self.table = make.parameter("table", (rows, shape.hidden_size), method)

    def forward(self, hidden: Tensor) -> Tensor:
        if self.table is not None:
            hidden = hidden + self.table[self.offset : self.offset + hidden.shape[1]]  # (batch, seq, h) + (seq, h)
        return self.dropout(hidden)  # type: ignore[no-any-return]
