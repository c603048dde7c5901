"""Masks and biases for torch's flex_attention on GPUs: sparsity patterns, windows, documents, ALiBi.

It compiles one kernel, which computes mask and bias from the positions, never stores them or the scores, and skips
blocks of tokens that do not attend to each other. It has no dropout.
T5's relative position bias, which has a gradient, stays a tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from neoxargs.facts.attention import fits_flex
from neoxargs.registry.receivers import numbers
from neoxargs.train.ops.fused import should_compile
from neoxargs.train.ops.mask_rule import MaskRule
from neoxargs.train.ops.sdpa import has_flash_kernel
from neoxargs.train.ops.sparsity import local_layout
from neoxargs.train.ops.tables import Tables

#: Batch element, head, row and column -> whether the row's token attends to the column's.
Attends = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
#: A score, and where it stands: batch element, head, row and column -> the score that enters the softmax.
Change = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def is_supported(query_BNSH: Tensor, dropout: float) -> bool:
    """Whether flex_attention can compute this; otherwise a mask is made for torch's ordinary attention."""
    width = query_BNSH.shape[-1]
    fits = query_BNSH.is_cuda and fits_flex(width, dropout)
    fits = fits and (width.bit_count() == 1 or numbers(torch.__version__) >= (2, 13))  # older ones refuse it
    return fits and should_compile("cuda") and has_flash_kernel(query_BNSH.device)  # not before the A100


@cache
def kernel(compiled: bool) -> Any:
    """Return flex_attention, compiled on GPUs only: uncompiled, as in tests on a CPU, it stores all scores."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention) if compiled else flex_attention


def alibi_change(rule: MaskRule, device: torch.device, tables: Tables) -> Change | None:
    """Return the function that adds ALiBi's bias to scores; None without it."""
    if not rule.slopes:
        return None
    slopes = tables.get(("slopes", device), lambda: torch.tensor(rule.slopes, device=device))

    def lower(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return score - slopes[head] * (row - column)

    return lower


def block_mask(rule: MaskRule, seq: int, device: torch.device, starts_BS: Tensor | None, tables: Tables) -> Any:
    """Return which blocks of 128 tokens attend to which, for the kernel: the same object for all layers that agree."""
    key = ("block mask", rule, seq, device)
    if starts_BS is None:
        return tables.get(key, lambda: _built_block_mask(rule, seq, device, None, tables))
    return tables.derived(key, starts_BS, lambda: _built_block_mask(rule, seq, device, starts_BS, tables))


def _built_block_mask(rule: MaskRule, seq: int, device: torch.device, starts_BS: Tensor | None, tables: Tables) -> Any:
    from torch.nn.attention.flex_attention import and_masks, create_block_mask

    conditions: list[Attends] = [_is_before]
    heads = None
    if rule.pattern:
        blocks = tables.get(("layout", rule.pattern, device), lambda: _layout(rule, device))
        conditions.append(_is_in_layout(blocks, rule.pattern.block))
        # None: the mask does not depend on the head, and is stored once.
        heads = len(blocks) if len(blocks) > 1 else None
    if rule.window:
        conditions.append(_is_in_window(rule.window))
    if starts_BS is not None:
        conditions.append(_is_in_document(starts_BS))
    batch = None if starts_BS is None else len(starts_BS)
    return create_block_mask(and_masks(*conditions), batch, heads, seq, seq, device=str(device))


def _layout(rule: MaskRule, device: torch.device) -> Tensor:
    assert rule.pattern
    return local_layout(rule.pattern, rule.axis).to(device)


# torch.compile needs functions that close over tensors and numbers only.


def _is_before(batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
    return row >= column


def _is_in_layout(blocks: Tensor, size: int) -> Attends:
    per_head = len(blocks) > 1

    def attends(batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return blocks[head if per_head else 0, row // size, column // size]

    return attends


def _is_in_window(width: int) -> Attends:
    def attends(batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return row - column <= width

    return attends


def _is_in_document(starts_BS: Tensor) -> Attends:
    def attends(batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return starts_BS[batch, row] == starts_BS[batch, column]

    return attends
