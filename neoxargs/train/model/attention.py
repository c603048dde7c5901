"""Causal self-attention over this rank's heads.

The rows of the fused weight come group by group: a group's query heads, its key, its value. So a contiguous slice
of rows is a set of whole groups, and tensor parallel ranks can share it out at any size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from neoxargs.resolve.config import Config
from neoxargs.train.kernels.flex import attend_blocks, fits
from neoxargs.train.kernels.sdpa import attend, causal, steps
from neoxargs.train.kernels.sparsity import pattern, visible, window
from neoxargs.train.model import mup
from neoxargs.train.model.bias import RelativeBias, alibi
from neoxargs.train.model.cache import Cache
from neoxargs.train.model.documents import positions, same_document
from neoxargs.train.model.init import draw
from neoxargs.train.model.norm import norm
from neoxargs.train.model.rotary import rotate
from neoxargs.train.parallel.make import Make
from neoxargs.train.parallel.tensor_rng import different_on_each_rank


class SelfAttention(nn.Module):
    """(batch, seq, hidden), or a shard of the sequence, -> the same; layer: its place in the model, from 0."""

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
        self.pattern = pattern(config, layer, make.seed)
        self.window = attention.sliding_window_width or 0
        self.steps = steps(attention, config.fusion, layer)
        self.restart, self.separate = config.data.reset_position_ids, config.data.reset_attention_mask
        bias = attention.use_bias_in_attn_linear
        enter, leave = draw(init.init_method, init, shape), draw(init.output_layer_init_method, init, shape)
        rows = shape.num_kv_heads * (self.queries + 2) * self.head_dim
        self.query_key_value = make.column("query_key_value", shape.hidden_size, rows, enter, bias)
        self.dense = make.row("dense", shape.hidden_size, shape.hidden_size, leave, bias)
        self.norms: nn.ModuleList | None = None
        if config.norm.use_qk_layernorm:
            self.norms = nn.ModuleList(norm(self.head_dim, config.norm, make.tensor) for _ in ("query", "key"))
        #: While generating.
        self.cache: Cache | None = None

    def forward(self, hidden: Tensor, starts: Tensor | None = None) -> Tensor:
        """starts: (batch, seq), where each token's document begins, if that matters."""
        mixed = self.query_key_value(hidden).unflatten(-1, (self.groups, self.queries + 2, self.head_dim))
        # One split, because its backward is one concatenation; three slices would add up three zero-filled tensors.
        query, key, value = mixed.split((self.queries, 1, 1), dim=3)
        query, key, value = (x.flatten(2, 3).transpose(1, 2) for x in (query, key, value))
        if self.norms is not None:
            query, key = (normed(x) for normed, x in zip(self.norms, (query, key), strict=True))
        query = mup.times(query, self.scale)
        if self.rotated:
            places, reach = positions(starts) if starts is not None and self.restart else None, query.shape[2]
            if self.cache is not None:
                places, reach = self.cache.places, self.cache.capacity
            query, key = (rotate(x, self.rotated, self.rotary_base, places, reach) for x in (query, key))
        if self.cache is not None:
            key, value = self.cache.add(key, value)
        dropout = self.dropout if self.training else 0.0
        context = self._attend(query, key, value, starts if self.separate else None, dropout)
        return self.dense(context.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, starts: Tensor | None, dropout: float) -> Tensor:
        """(batch, heads, seq, head_dim), with fewer heads in key and value when queries share them."""
        seq, device = key.shape[2], query.device
        allowed, bias = self._allowed(seq, starts, device), self._bias(seq, device)
        other = self._hides(seq) or starts is not None or bias is not None or query.shape[2] < seq
        if self.pattern and not other and fits(query, self.pattern, dropout):
            return attend_blocks(query, key, value, self.pattern, self.tensor)
        mask = allowed
        if bias is not None:
            mask = bias.masked_fill(~(causal(seq, device) if allowed is None else allowed), -torch.inf)
        if not dropout:
            return attend(query, key, value, mask, 0.0, self.steps)
        with different_on_each_rank(self.tensor, device):
            return attend(query, key, value, mask, dropout, self.steps)

    def _allowed(self, seq: int, starts: Tensor | None, device: torch.device) -> Tensor | None:
        """Which pairs count, broadcast to (batch, heads, seq, seq); None where only the order of tokens decides."""
        if self.cache is not None and self.cache.places is not None:
            near = self.cache.visible(self.window)
            return near & self.cache.rows(visible(self.pattern, self.tensor, device)) if self.pattern else near
        found = None
        if self.pattern:
            found = visible(self.pattern, self.tensor, device)[:, :seq, :seq]
        if self._hides(seq):
            near = window(seq, self.window, device)
            found = near if found is None else found & near
        if starts is not None:
            found = same_document(starts) & (causal(seq, device) if found is None else found)
        return found

    def _hides(self, seq: int) -> bool:
        """Is the window narrower than the sequence? Without a mask torch has faster kernels."""
        return 0 < self.window < seq - 1

    def _bias(self, seq: int, device: torch.device) -> Tensor | None:
        """(heads / tensor ranks, seq, seq), added to the scores; of later passes with a cache their rows."""
        cache = self.cache if self.cache is not None and self.cache.places is not None else None
        size = cache.capacity if cache else seq
        if self.relative is not None and self.relative.bias is not None:
            return self.relative.bias
        if self.relative is not None:
            found = self.relative(size, cache.places if cache else None)
            return found[..., :seq].transpose(0, 1) if cache else found  # type: ignore[no-any-return]
        if not self.alibi:
            return None
        found = alibi(size, self.heads, self.tensor, device)
        return cache.rows(found) if cache else found
