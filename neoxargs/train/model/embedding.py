"""The model's entrance: tokens to vectors, and where each token stands.

Two layers rather than one, because a tied output layer on another pipeline stage needs the token table only.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from neoxargs.resolve.config import Config
from neoxargs.train.kernels.cross_entropy import Vocabulary
from neoxargs.train.model.cache import Cache
from neoxargs.train.model.documents import Carried, closed, opened, positions, starts, travel
from neoxargs.train.model.init import draw, first_rows
from neoxargs.train.model.mup import multipliers, output_scale, times
from neoxargs.train.parallel.communicate import sum_gradients
from neoxargs.train.parallel.make import Make, VocabEmbedding
from neoxargs.train.parallel.tensor_rng import different_on_each_rank


class TokenEmbedding(nn.Module):
    """Tokens (batch, seq) -> (batch, seq, hidden), and where their documents begin if later layers need it."""

    def __init__(self, config: Config, vocabulary: Vocabulary, make: Make) -> None:
        super().__init__()
        #: Of what the output layer reads, where it is tied to this one.
        self.output_scale = output_scale(config, make)
        self.eod = vocabulary.eod if travel(config.data) else None
        method = first_rows(vocabulary.size, draw(config.init.init_method, config.init, config.shape))
        size = vocabulary.padded, config.shape.hidden_size
        self.word_embeddings = VocabEmbedding(*size, method, make.at("word_embeddings"))

    @property
    def weight(self) -> nn.Parameter:
        """(padded vocabulary / tensor ranks, hidden); the output layer's too, unless `no_weight_tying`."""
        return self.word_embeddings.weight

    def forward(self, tokens: Tensor) -> Carried:
        begun = None if self.eod is None else starts(tokens, self.eod)
        return closed(self.word_embeddings(tokens), begun)


class PositionEmbedding(nn.Module):
    """Adds what the residual stream is told about positions (`pos_emb`), then drops out.

    With sequence parallelism hidden states are the rank's shard here, and beginnings of documents are whole.
    """

    def __init__(self, config: Config, make: Make) -> None:
        super().__init__()
        shape, embedding, init = config.shape, config.embedding, config.init
        #: Of the result, and of what tells positions.
        self.multipliers = multipliers(config)
        self.restart = config.data.reset_position_ids
        self.dropout = nn.Dropout(config.regularization.hidden_dropout)
        self.offset = embedding.opt_pos_emb_offset
        self.waves = embedding.pos_emb == "sinusoidal"
        self.table: nn.Parameter | None = None
        if embedding.pos_emb == "learned":
            rows = shape.max_position_embeddings + self.offset
            method = draw(init.init_method, init, shape)
            self.table = make.parameter("table", (rows, shape.hidden_size), method)
        self.shards = make.shards
        sum_gradients(self.parameters(), self.shards)
        #: While generating.
        self.cache: Cache | None = None

    def forward(self, carried: Carried) -> Carried:
        hidden, begun = opened(carried)
        places = None if self.cache is None else self.cache.places  # (batch, seq)
        if begun is not None and self.restart:
            places = positions(begun).chunk(self.shards.size, dim=1)[self.shards.rank]
        first = self.shards.rank * hidden.shape[1]
        here = slice(self.offset + first, self.offset + first + hidden.shape[1])
        if self.table is not None:
            table = self.table[here] if places is None else self.table[self.offset + places]
            hidden = hidden + times(table, self.multipliers[1])
        if self.waves:
            standing = torch.arange(here.start, here.stop, device=hidden.device)
            standing = standing if places is None else self.offset + places
            hidden = hidden + times(waves(standing, hidden.shape[-1]).to(hidden.dtype), self.multipliers[1])
        hidden = times(hidden, self.multipliers[0])
        if not (self.training and self.dropout.p):
            return closed(hidden, begun)
        with different_on_each_rank(self.shards, hidden.device):
            return closed(self.dropout(hidden), begun)


def waves(places: Tensor, width: int) -> Tensor:
    """(…) -> (…, width): sines, then cosines, of wavelengths from 2 pi to nearly 20,000 pi (Vaswani et al. 2017,
    arXiv:1706.03762). The paper alternates them; GPT-NeoX's order is the one of the paper's own program."""
    rates = 10000.0 ** -(torch.arange(0, width, 2, device=places.device) / width)
    angles = places.unsqueeze(-1) * rates
    return torch.cat((angles.sin(), angles.cos()), dim=-1)
