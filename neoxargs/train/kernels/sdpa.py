"""From queries, keys and values to what each head has gathered: torch's fused kernels, or the steps one by one.

The fused kernels never store the scores and keep them in fp32, so in half precision they already give what
`attention_softmax_in_fp32` asks for. The steps are Megatron's: scores in the model's precision, softmax in fp32.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from neoxargs.registry.model import Attention, Fusion


@dataclass(frozen=True)
class Steps:
    """Whether half precision is computed step by step."""

    causal: bool = False
    """Where the order of tokens is the only mask."""
    masked: bool = False
    """Where there is another mask, or a bias."""
    layer: int = 1
    """What scores are divided by as long as they are in half precision: the layer's number, against overflow."""


def steps(attention: Attention, fusion: Fusion, layer: int) -> Steps:
    """layer: counted from 0; as in Megatron, the first layer divides by 1."""
    scaled = attention.apply_query_key_layer_scaling
    wanted = scaled or attention.attention_softmax_in_fp32
    return Steps(
        causal=wanted and not fusion.scaled_upper_triang_masked_softmax_fusion,
        masked=wanted and not fusion.scaled_masked_softmax_fusion,
        layer=layer + 1 if scaled else 1,
    )


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, steps: Steps) -> Tensor:
    """(batch, heads, seq, head_dim), with fewer heads in key and value when queries share them -> query's shape.

    mask: None where every token sees all tokens before it and itself; else, broadcast to (batch, heads, seq, seq),
    which pairs count (bool) or what is added to their scores, -inf included.
    """
    if query.dtype != torch.float32 and (steps.causal if mask is None else steps.masked):
        return _step_by_step(query, key, value, mask, dropout, steps.layer)
    shared = key.shape[1] < query.shape[1]
    if shared and not shares_keys(query.device.type, query.dtype, mask is not None):
        (key, value), shared = _of_every_query(key, value, query.shape[1]), False
    if mask is None:
        return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True, enable_gqa=shared)
    if mask.dtype != torch.bool:
        mask = mask.to(query.dtype)
    return F.scaled_dot_product_attention(query, key, value, mask, dropout_p=dropout, enable_gqa=shared)


def shares_keys(device: str, dtype: torch.dtype, masked: bool) -> bool:
    """Can torch let queries share keys without storing all scores?

    On a GPU only its flash kernel can, which knows neither masks nor fp32; with keys of their own others do.
    """
    return device != "cuda" or not (masked or dtype == torch.float32)


def _of_every_query(key: Tensor, value: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Repeated for each of the heads that share them."""
    count = heads // key.shape[1]
    if count == 1:
        return key, value
    return key.repeat_interleave(count, dim=1), value.repeat_interleave(count, dim=1)


def _step_by_step(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, layer: int) -> Tensor:
    key, value = _of_every_query(key, value, query.shape[1])
    if mask is None:
        mask = causal(query.shape[2], query.device)
    # Divided before the product: it is the product that overflows in fp16.
    scores = (query / (query.shape[-1] ** 0.5 * layer)) @ key.transpose(-1, -2)
    scores = scores.float() * layer
    scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    return F.dropout(scores.softmax(-1).to(value.dtype), dropout) @ value


@lru_cache(maxsize=8)
def causal(seq: int, device: torch.device) -> Tensor:
    """(seq, seq): does the row's token see the column's?"""
    return torch.ones(seq, seq, dtype=torch.bool, device=device).tril()
