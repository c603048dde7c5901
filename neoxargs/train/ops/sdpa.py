"""Scaled dot-product attention in torch's fused kernels.

They never store the scores and compute them in fp32, so in half precision they already do what
`attention_softmax_in_fp32` asks for.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from neoxargs.facts.attention_kernels import Place
from neoxargs.registry.receivers import numbers
from neoxargs.train.ops.fused import should_compile
from neoxargs.train.ops.tables import Tables

#: Head dimension up to which torch has a flash kernel.
WIDEST_FLASH_HEAD = 256


def place(device: torch.device) -> Place:
    """Return what the choice of a kernel depends on."""
    is_gpu = device.type == "cuda"
    return Place(
        device.type,
        numbers(torch.__version__)[:2],
        ampere=is_gpu and has_flash_kernel(device),
        compiles=is_gpu and should_compile("cuda"),
    )


def attend(query_BNSH: Tensor, key_BKCH: Tensor, value_BKCH: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    """Return context_BNSH; with grouped-query attention, K is smaller than N.

    mask: None for causal attention; otherwise, broadcast to (B, N, S, C), a bool mask of the pairs that attend, or a
    bias on the scores in which -inf masks a pair.
    """
    gqa = key_BKCH.shape[1] < query_BNSH.shape[1]
    if gqa and not has_gqa_kernel(query_BNSH, mask is not None):
        (key_BKCH, value_BKCH), gqa = repeat_heads(key_BKCH, value_BKCH, query_BNSH.shape[1]), False
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


def repeat_heads(key_BKCH: Tensor, value_BKCH: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Repeat each key and value head for the query heads that share it."""
    count = heads // key_BKCH.shape[1]
    if count == 1:
        return key_BKCH, value_BKCH
    return key_BKCH.repeat_interleave(count, dim=1), value_BKCH.repeat_interleave(count, dim=1)


def causal_mask(seq: int, device: torch.device) -> Tensor:
    """(S, C): whether the row's token attends to the column's token."""
    return torch.ones(seq, seq, dtype=torch.bool, device=device).tril()


def shared_causal_mask(seq: int, device: torch.device, tables: Tables) -> Tensor:
    """Return the causal mask (S, C) that all layers of a model share."""
    return tables.square(("causal", device), seq, lambda size: causal_mask(size, device))
