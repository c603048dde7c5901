"""Token embedding and position embedding.

They are two layers, because a tied output layer on another pipeline stage needs the token embedding only.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from neoxargs.config.config import Config
from neoxargs.facts.data import resets_positions
from neoxargs.train.losses.cross_entropy import Vocabulary
from neoxargs.train.model.cache import Cache
from neoxargs.train.model.documents import (
    LayerInput,
    document_starts,
    needs_document_starts,
    pack,
    positions_in_document,
    unpack,
)
from neoxargs.train.model.scales import multipliers, scale_by
from neoxargs.train.model.soft_prompt import prompt as soft_prompt
from neoxargs.train.parallel.communicate import register_gradient_sum
from neoxargs.train.parallel.init import first_rows, initializer
from neoxargs.train.parallel.layers import VocabEmbedding, Weights
from neoxargs.train.parallel.tensor_rng import different_on_each_rank


class TokenEmbedding(nn.Module):
    """Tokens -> hidden states, with document starts if later layers need them: tokens_BS -> hidden_BSD, starts_BS.

    The starts come with the tokens if documents were packed, else from the end-of-document tokens.
    """

    def __init__(self, config: Config, vocabulary: Vocabulary, weights: Weights) -> None:
        super().__init__()
        self.eod = vocabulary.eod if needs_document_starts(config.data) else None
        method = first_rows(vocabulary.size, initializer(config.init.init_method, config.init, config.shape))
        size = vocabulary.padded, config.shape.hidden_size
        self.word_embeddings = VocabEmbedding(*size, method, weights.at("word_embeddings"))
        self.positions = weights.ranks.positions

    @property
    def weight(self) -> nn.Parameter:
        """weight_VD, V this rank's rows; shared with the output layer unless `no_weight_tying`."""
        return self.word_embeddings.weight

    def forward(self, inputs: LayerInput) -> LayerInput:
        """inputs: tokens_BS, with or without starts_BS, of all positions.

        With context or sequence parallelism S is a shard in hidden_BSD.
        """
        tokens_BS, starts_BS = unpack(inputs)
        if starts_BS is None and self.eod is not None:
            starts_BS = document_starts(tokens_BS, self.eod)
        hidden_BSD = self.word_embeddings(self.positions.of(tokens_BS))
        if self.training and torch.is_grad_enabled() and not hidden_BSD.requires_grad:
            # The table is frozen. Reentrant checkpointing computes no gradients of layers whose input needs none.
            hidden_BSD.requires_grad_()
        return pack(hidden_BSD, starts_BS)


class PositionEmbedding(nn.Module):
    """Add the embedding of positions that `pos_emb` names to the hidden states, then apply dropout.

    With context or sequence parallelism hidden states are this rank's shard of the sequence; document starts cover all
    of it.
    """

    def __init__(self, config: Config, weights: Weights) -> None:
        super().__init__()
        shape, embedding, init = config.shape, config.embedding, config.init
        #: muP factors on the output, and on the embedding of positions.
        self.multipliers = multipliers(config)
        self.token_multiplier = embedding.embedding_multiplier
        self.reset_positions = resets_positions(config.data)
        self.dropout = nn.Dropout(config.regularization.hidden_dropout)
        self.offset = embedding.opt_pos_emb_offset
        self.sinusoidal = embedding.pos_emb == "sinusoidal"
        self.table: nn.Parameter | None = None
        if embedding.pos_emb == "learned":
            rows = shape.max_position_embeddings + self.offset
            method = initializer(init.init_method, init, shape)
            self.table = weights.parameter("table", (rows, shape.hidden_size), method)
        self.soft_prompt = soft_prompt.prompt(config.soft_prompt, shape.hidden_size, weights)
        self.sequence, self.positions = weights.ranks.sequence, weights.ranks.positions
        register_gradient_sum(self.parameters(), self.sequence)
        #: Set during text generation only.
        self.cache: Cache | None = None

    def forward(self, inputs: LayerInput) -> LayerInput:
        hidden_BSD, starts_BS = unpack(inputs)
        positions = replace(self.positions, sequence=self.sequence)  # which scoring pauses
        # Only with the first tokens: those that generation adds later come after the prompt.
        if self.soft_prompt is not None and (self.cache is None or self.cache.positions is None):
            hidden_BSD = soft_prompt.insert(self.soft_prompt, hidden_BSD, positions.runs(hidden_BSD.shape[1]))
        hidden_BSD = scale_by(hidden_BSD, self.token_multiplier)
        positions_BS = None if self.cache is None else self.cache.positions
        if starts_BS is not None and self.reset_positions:
            # Starts cover the whole sequence, hidden states this rank's shard.
            positions_BS = positions.of(positions_in_document(starts_BS))
        elif positions.ring > 1 and positions_BS is None:
            positions_BS = positions.numbers(hidden_BSD.shape[1], hidden_BSD.device)
        first = self.offset + (positions.first(hidden_BSD.shape[1]) if positions_BS is None else 0)
        rows = slice(first, first + hidden_BSD.shape[1])
        if self.table is not None:
            table = self.table[rows] if positions_BS is None else self.table[self.offset + positions_BS]
            hidden_BSD = hidden_BSD + scale_by(table, self.multipliers[1])
        if self.sinusoidal:
            steps = torch.arange(rows.start, rows.stop, device=hidden_BSD.device)
            steps = steps if positions_BS is None else self.offset + positions_BS
            table = sinusoidal(steps, hidden_BSD.shape[-1]).to(hidden_BSD.dtype)
            hidden_BSD = hidden_BSD + scale_by(table, self.multipliers[1])
        hidden_BSD = scale_by(hidden_BSD, self.multipliers[0])
        if not (self.training and self.dropout.p):
            return pack(hidden_BSD, starts_BS)
        with different_on_each_rank(self.sequence, hidden_BSD.device):
            return pack(self.dropout(hidden_BSD), starts_BS)


def sinusoidal(positions: Tensor, width: int) -> Tensor:
    """Sinusoidal position embedding (Vaswani et al. 2017, arXiv:1706.03762): positions (…) -> (…, width).

    The wavelengths range from 2 pi to nearly 20,000 pi. The paper interleaves sines and cosines. As in GPT-NeoX and in
    tensor2tensor, the authors' code, all sines come first here.
    """
    rates = 10000.0 ** -(torch.arange(0, width, 2, device=positions.device) / width)
    angles = positions.unsqueeze(-1) * rates
    return torch.cat((angles.sin(), angles.cos()), dim=-1)
