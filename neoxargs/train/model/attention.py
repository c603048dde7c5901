"""Causal self-attention over this rank's heads.

The rows of the fused weight come group by group: a group's query heads, its key, its value. So a contiguous slice
of rows is a set of whole groups, and tensor parallel ranks can share it out at any size.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from neoxargs.registry.model import Attention, Embedding, Init, Shape
from neoxargs.registry.regularization import Regularization
from neoxargs.train.model.dropout import different_on_each_rank
from neoxargs.train.model.init import draw
from neoxargs.train.model.layers import Make
from neoxargs.train.model.rotary import rotate


class SelfAttention(nn.Module):
    """(batch, seq, hidden) -> (batch, seq, hidden)."""

    def __init__(
        self,
        shape: Shape,
        embedding: Embedding,
        attention: Attention,
        init: Init,
        regularization: Regularization,
        make: Make,
    ) -> None:
        super().__init__()
        self.tensor = make.tensor
        self.head_dim = shape.hidden_size // shape.num_attention_heads
        self.queries = shape.num_attention_heads // shape.num_kv_heads  # query heads per key and value head
        self.groups = shape.num_kv_heads // make.tensor.size
        self.dropout = regularization.attention_dropout
        self.rotated = int(self.head_dim * embedding.rotary_pct) if embedding.pos_emb == "rotary" else 0
        self.rotary_base = embedding.rotary_emb_base
        bias = attention.use_bias_in_attn_linear
        enter, leave = draw(init.init_method, init, shape), draw(init.output_layer_init_method, init, shape)
        rows = shape.num_kv_heads * (self.queries + 2) * self.head_dim
        self.query_key_value = make.column("query_key_value", shape.hidden_size, rows, enter, bias)
        self.dense = make.row("dense", shape.hidden_size, shape.hidden_size, leave, bias)

    def forward(self, hidden: Tensor) -> Tensor:
        batch, seq, _ = hidden.shape
        mixed = self.query_key_value(hidden).view(batch, seq, self.groups, self.queries + 2, self.head_dim)
        # One split, because its backward is one concatenation; three slices would add up three zero-filled tensors.
        query, key, value = mixed.split((self.queries, 1, 1), dim=3)
        query, key, value = (x.flatten(2, 3).transpose(1, 2) for x in (query, key, value))
        if self.rotated:
            query, key = (rotate(x, self.rotated, self.rotary_base) for x in (query, key))
        context = self._attend(query, key, value)
        return self.dense(context.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """(batch, heads, seq, head_dim), with fewer heads in key and value when queries share them."""
        shared = self.queries > 1
        if not (self.training and self.dropout):
            return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=shared)
        with different_on_each_rank(self.tensor, query.device):
            return F.scaled_dot_product_attention(
                query, key, value, dropout_p=self.dropout, is_causal=True, enable_gqa=shared
            )
