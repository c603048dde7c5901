"""Scaled dot-product attention: torch's fused kernels, or the unfused operations.

The fused kernels never store the scores and compute them in fp32, so in half precision they already do what
`attention_softmax_in_fp32` asks for. The unfused operations are Megatron's: scores in the model's precision, softmax in
fp32.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from neoxargs.registry.model import Attention, Fusion
from neoxargs.train.ops.tables import Tables

#: Head dimension up to which torch has a flash kernel.
WIDEST_FLASH_HEAD = 256


@dataclass(frozen=True)
class UnfusedCases:
    """In which cases half precision uses the unfused operations."""

    causal: bool = False
    """Whether to use the unfused operations if the only mask is the causal one."""
    masked: bool = False
    """Whether to use the unfused operations with any other mask, or with a bias."""
    layer: int = 1
    """Scores in half precision are divided by this number to prevent overflow: the layer's number, counted from 1."""
    softcap: float = 0.0
    """The bound on scores (`attn_logit_softcapping`), which the fused kernels do not have; 0 means none."""

    def include(self, dtype: torch.dtype, masked: bool) -> bool:
        return dtype != torch.float32 and (self.masked if masked else self.causal)


def unfused_cases(attention: Attention, fusion: Fusion, layer: int, kind: str = "global") -> UnfusedCases:
    """Return the cases that the configuration asks for.

    layer: from 0; as in Megatron, the first layer divides by 1. kind: the layer's in `attention_config`; `flash` asks
    for a kernel that does not store the scores.
    """
    softcap = attention.attn_logit_softcapping or 0.0
    if kind == "flash":
        return UnfusedCases(softcap=softcap)
    scaled = attention.apply_query_key_layer_scaling
    wanted = scaled or attention.attention_softmax_in_fp32
    return UnfusedCases(
        causal=wanted and not fusion.scaled_upper_triang_masked_softmax_fusion,
        masked=wanted and not fusion.scaled_masked_softmax_fusion,
        layer=layer + 1 if scaled else 1,
        softcap=softcap,
    )


def attend(
    query_BNSH: Tensor,
    key_BKCH: Tensor,
    value_BKCH: Tensor,
    mask: Tensor | None,
    dropout: float,
    unfused: UnfusedCases,
    tables: Tables,
) -> Tensor:
    """Compute attention: (batch, heads, seq, head_dim) of each -> the query's shape.

    Key and value have fewer heads than the query with grouped-query attention. mask: None for causal attention;
    otherwise, broadcast to (batch, heads, seq, seq), a bool mask of the pairs that attend, or a bias on the scores in
    which -inf masks a pair. tables: where the causal mask of the unfused operations is kept.
    """
    if unfused.softcap or unfused.include(query_BNSH.dtype, masked=mask is not None):
        if mask is None:
            mask = shared_causal_mask(query_BNSH.shape[2], query_BNSH.device, tables)
        return _attend_unfused(query_BNSH, key_BKCH, value_BKCH, mask, dropout, unfused)
    gqa = key_BKCH.shape[1] < query_BNSH.shape[1]
    if gqa and not has_gqa_kernel(query_BNSH, mask is not None):
        (key_BKCH, value_BKCH), gqa = _repeat_heads(key_BKCH, value_BKCH, query_BNSH.shape[1]), False
    if mask is None:
        return F.scaled_dot_product_attention(
            query_BNSH, key_BKCH, value_BKCH, dropout_p=dropout, is_causal=True, enable_gqa=gqa
        )
    if mask.dtype != torch.bool:
        # The kernels require a bias of the query's type.
        mask = mask.to(query_BNSH.dtype)
    return F.scaled_dot_product_attention(query_BNSH, key_BKCH, value_BKCH, mask, dropout_p=dropout, enable_gqa=gqa)


def has_gqa_kernel(query_BNSH: Tensor, masked: bool) -> bool:
    """Whether torch has a grouped-query kernel for this case that does not store all scores.

    On a GPU only the flash kernel supports it. That supports neither masks nor fp32 nor heads wider than 256, and runs
    on an A100 or later. Repeated keys and values let the memory-efficient kernel run.
    """
    if query_BNSH.device.type != "cuda":
        return True
    fits = not masked and query_BNSH.dtype != torch.float32 and query_BNSH.shape[-1] <= WIDEST_FLASH_HEAD
    return fits and has_flash_kernel(query_BNSH.device)


def has_flash_kernel(device: torch.device) -> bool:
    """Whether torch's flash kernel runs on this GPU."""
    return torch.cuda.get_device_capability(device) >= (8, 0)


def _repeat_heads(key_BKCH: Tensor, value_BKCH: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Repeat each key and value head for the query heads that share it."""
    count = heads // key_BKCH.shape[1]
    if count == 1:
        return key_BKCH, value_BKCH
    return key_BKCH.repeat_interleave(count, dim=1), value_BKCH.repeat_interleave(count, dim=1)


def _attend_unfused(
    query_BNSH: Tensor, key_BKCH: Tensor, value_BKCH: Tensor, mask: Tensor, dropout: float, unfused: UnfusedCases
) -> Tensor:
    # Plain products have no notion of shared heads.
    key_BKCH, value_BKCH = _repeat_heads(key_BKCH, value_BKCH, query_BNSH.shape[1])
    # Divide before the product, because the product overflows in fp16.
    scores_BNSC = (query_BNSH / (query_BNSH.shape[-1] ** 0.5 * unfused.layer)) @ key_BKCH.transpose(-1, -2)
    # In fp32 from here on, so the layer's divisor can be undone without overflow.
    scores_BNSC = scores_BNSC.float() * unfused.layer
    if unfused.softcap:
        scores_BNSC = (scores_BNSC / unfused.softcap).tanh() * unfused.softcap
    scores_BNSC = scores_BNSC.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores_BNSC + mask
    return F.dropout(scores_BNSC.softmax(-1).to(value_BKCH.dtype), dropout) @ value_BKCH


def causal_mask(seq: int, device: torch.device) -> Tensor:
    """(seq, seq): whether the row's token attends to the column's token."""
    return torch.ones(seq, seq, dtype=torch.bool, device=device).tril()


def shared_causal_mask(seq: int, device: torch.device, tables: Tables) -> Tensor:
    """Return the causal mask (seq, seq) that all layers of a model share."""
    return tables.square(("causal", device), seq, lambda size: causal_mask(size, device))
