"""Causal self-attention over the heads of this tensor parallel rank.

The rows of the fused query, key and value weight are ordered by group: a group's query heads, its key head, its value
head. A contiguous slice of rows is therefore a set of complete groups, and the weight can be partitioned over any
tensor parallel size that divides `num_kv_heads`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from neoxargs.resolve.config import Config
from neoxargs.train.kernels.flex import attend_blocks, is_supported
from neoxargs.train.kernels.sdpa import attend, causal_mask, unfused_cases
from neoxargs.train.kernels.sparsity import layer_pattern, token_mask, window_mask
from neoxargs.train.model import mup
from neoxargs.train.model.bias import RelativeBias, alibi
from neoxargs.train.model.cache import Cache
from neoxargs.train.model.documents import positions_in_document, same_document
from neoxargs.train.model.init import initializer
from neoxargs.train.model.norm import norm
from neoxargs.train.model.rotary import rotate
from neoxargs.train.parallel.make import Make
from neoxargs.train.parallel.tensor_rng import different_on_each_rank


class SelfAttention(nn.Module):
    """Attention with its input and output projections: (batch, seq, hidden) -> (batch, seq, hidden).

    With sequence parallelism both are (batch, seq / ranks, hidden). layer: the layer's index in the model, from 0.
    """

    def __init__(self, config: Config, make: Make, layer: int = 0, relative: RelativeBias | None = None) -> None:
        super().__init__()
        shape, embedding, attention, init = config.shape, config.embedding, config.attention, config.init
        self.tensor = make.tensor
        self.heads = shape.num_attention_heads
        self.head_dim = shape.hidden_size // self.heads
        self.queries = self.heads // shape.num_kv_heads  # query heads per key and value head
        self.groups = shape.num_kv_heads // make.tensor.size
        self.dropout = config.regularization.attention_dropout
        self.scale = mup.attention_scale(config)
        self.rotated = int(self.head_dim * embedding.rotary_pct) if embedding.pos_emb == "rotary" else 0
        self.rotary_base = embedding.rotary_emb_base
        self.alibi = embedding.pos_emb == "alibi"
        self.relative = relative
        self.pattern = layer_pattern(config, layer, make.seed)
        self.window = attention.sliding_window_width or 0
        self.unfused = unfused_cases(attention, config.fusion, layer)
        self.reset_positions, self.reset_mask = config.data.reset_position_ids, config.data.reset_attention_mask
        bias = attention.use_bias_in_attn_linear
        init_in = initializer(init.init_method, init, shape)
        init_out = initializer(init.output_layer_init_method, init, shape)
        rows = shape.num_kv_heads * (self.queries + 2) * self.head_dim
        self.query_key_value = make.column("query_key_value", shape.hidden_size, rows, init_in, bias)
        self.dense = make.row("dense", shape.hidden_size, shape.hidden_size, init_out, bias)
        self.norms: nn.ModuleList | None = None
        if config.norm.use_qk_layernorm:
            self.norms = nn.ModuleList(norm(self.head_dim, config.norm, make.tensor) for _ in ("query", "key"))
        #: Set during text generation only.
        self.cache: Cache | None = None

    def forward(self, hidden: Tensor, starts: Tensor | None = None) -> Tensor:
        """starts: (batch, seq), the position where each token's document begins; None if no layer needs it."""
        mixed = self.query_key_value(hidden).unflatten(-1, (self.groups, self.queries + 2, self.head_dim))
        # One split: its backward pass is one concatenation, where three slices would each fill a tensor with zeros.
        query, key, value = mixed.split((self.queries, 1, 1), dim=3)
        query, key, value = (x.flatten(2, 3).transpose(1, 2) for x in (query, key, value))
        if self.norms is not None:
            query, key = (layer_norm(x) for layer_norm, x in zip(self.norms, (query, key), strict=True))
        query = mup.scale_by(query, self.scale)
        if self.rotated:
            positions = positions_in_document(starts) if starts is not None and self.reset_positions else None
            length = query.shape[2]
            if self.cache is not None:
                positions, length = self.cache.positions, self.cache.capacity
            query, key = (rotate(x, self.rotated, self.rotary_base, positions, length) for x in (query, key))
        if self.cache is not None:
            key, value = self.cache.add(key, value)
        dropout = self.dropout if self.training else 0.0
        context = self._attend(query, key, value, starts if self.reset_mask else None, dropout)
        return self.dense(context.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, starts: Tensor | None, dropout: float) -> Tensor:
        """Run the kernel that fits the mask: (batch, heads, seq, head_dim) of each -> the query's shape.

        Key and value have fewer heads than the query with grouped-query attention.
        """
        seq, device = key.shape[2], query.device
        allowed, bias = self._allowed(seq, starts, device), self._bias(seq, device)
        needs_mask = self._uses_window(seq) or starts is not None or bias is not None or query.shape[2] < seq
        if self.pattern and not needs_mask and is_supported(query, self.pattern, dropout):
            return attend_blocks(query, key, value, self.pattern, self.tensor)
        mask = allowed
        if bias is not None:
            mask = bias.masked_fill(~(causal_mask(seq, device) if allowed is None else allowed), -torch.inf)
        if not dropout:
            return attend(query, key, value, mask, 0.0, self.unfused)
        with different_on_each_rank(self.tensor, device):
            return attend(query, key, value, mask, dropout, self.unfused)

    def _allowed(self, seq: int, starts: Tensor | None, device: torch.device) -> Tensor | None:
        """Boolean mask of the pairs that attend, broadcast to (batch, heads, seq, seq); None if it is only causal."""
        if self.cache is not None and self.cache.positions is not None:
            near = self.cache.visible(self.window)
            return near & self.cache.select(token_mask(self.pattern, self.tensor, device)) if self.pattern else near
        allowed = None
        if self.pattern:
            allowed = token_mask(self.pattern, self.tensor, device)[:, :seq, :seq]
        if self._uses_window(seq):
            near = window_mask(seq, self.window, device)
            allowed = near if allowed is None else allowed & near
        if starts is not None:
            allowed = same_document(starts) & (causal_mask(seq, device) if allowed is None else allowed)
        return allowed

    def _uses_window(self, seq: int) -> bool:
        """Whether the window is narrower than the sequence; without a mask torch has faster kernels."""
        return 0 < self.window < seq - 1

    def _bias(self, seq: int, device: torch.device) -> Tensor | None:
        """Return the bias added to the scores, (heads / tensor ranks, seq, seq), or None.

        After the first pass with a cache it has a row for each new token only: (batch, heads / ranks, new, seq).
        """
        cache = self.cache if self.cache is not None and self.cache.positions is not None else None
        size = cache.capacity if cache else seq
        if self.relative is not None and self.relative.bias is not None:
            return self.relative.bias
        if self.relative is not None:
            bias = self.relative(size, cache.positions if cache else None)
            return bias[..., :seq].transpose(0, 1) if cache else bias  # type: ignore[no-any-return]
        if not self.alibi:
            return None
        bias = alibi(size, self.heads, self.tensor, device)
        return cache.select(bias) if cache else bias
