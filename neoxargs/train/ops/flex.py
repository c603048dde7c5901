"""Masks and biases for torch's flex_attention on GPUs: sparsity patterns, windows, documents, ALiBi.

It compiles one kernel, which computes mask and bias from the positions, never stores them or the scores, and skips
blocks of tokens that do not attend to each other. It has no dropout.
T5's relative position bias, which has a gradient, stays a tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import gcd
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from neoxargs.registry.receivers import numbers
from neoxargs.train.ops.mask_rule import MaskRule
from neoxargs.train.ops.sparsity import local_layout
from neoxargs.train.ops.tables import Tables

#: Tokens in a block: the kernel skips blocks of which no token attends to another block's.
BLOCK = 128
#: How many kernels are compiled for the rules and shapes of a model, in training and evaluation; beyond its limit (8 by
#: default) torch would compute all scores without a kernel.
KERNELS = 128
#: Batch element, head, row and column -> whether the row's token attends to the column's.
Attends = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
#: A score, and where it stands: batch element, head, row and column -> the score that enters the softmax.
Change = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


@cache
def kernel(compiled: bool) -> Any:
    """Return flex_attention, compiled on GPUs only: uncompiled, as in tests on a CPU, it stores all scores."""
    from torch.nn.attention.flex_attention import flex_attention

    if not compiled:
        return flex_attention
    limit = {}
    if numbers(torch.__version__) >= (2, 13):
        limit["recompile_limit"] = KERNELS
    else:  # for all that is compiled
        torch._dynamo.config.cache_size_limit = max(KERNELS, torch._dynamo.config.cache_size_limit)
    # fullgraph: an error, rather than attention without a kernel, should it not be compiled.
    return torch.compile(flex_attention, fullgraph=True, **limit)  # type: ignore[call-overload]


def with_lse(compiled: bool, *inputs: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """Return what the kernel computes, and the log-sum-exp of each query's scores, (B, N, S) in fp32."""
    if numbers(torch.__version__) < (2, 9):
        return kernel(compiled)(*inputs, **options, return_lse=True)  # type: ignore[no-any-return]
    from torch.nn.attention.flex_attention import AuxRequest

    context_BNSH, others = kernel(compiled)(*inputs, **options, return_aux=AuxRequest(lse=True))
    return context_BNSH, others.lse


def alibi_change(rule: MaskRule, device: torch.device, tables: Tables, shift: Tensor | None = None) -> Change | None:
    """Return the function that adds ALiBi's bias to scores; None without it.

    shift: by how much the positions of rows exceed those of columns, if they are of two chunks of a sequence.
    """
    if not rule.slopes:
        return None
    slopes = tables.get(("slopes", device), lambda: torch.tensor(rule.slopes, device=device))
    further: Tensor | int = 0 if shift is None else shift

    def lower(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return score - slopes[head] * (row + further - column)

    return lower


def bounded(softcap: float, change: Change | None) -> Change | None:
    """Return the function of scores that bounds them (`attn_logit_softcapping`; 0: not), and then changes them."""
    if not softcap:
        return change

    def bound(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        score = softcap * torch.tanh(score / softcap)
        return change(score, batch, head, row, column) if change else score

    return bound


def block_mask(rule: MaskRule, seq: int, device: torch.device, starts_BS: Tensor | None, tables: Tables) -> Any:
    """Return which blocks of 128 tokens attend to which, for the kernel: the same object for all layers that agree."""
    key, pattern = ("block mask", rule, seq, device), rule.pattern

    def build() -> Any:
        from torch.nn.attention.flex_attention import and_masks

        pair = attends(0, True, rule.window, None if starts_BS is None else (starts_BS, starts_BS))
        firsts_BS = _first_columns(torch.arange(seq, device=device), rule.window, starts_BS)
        if pattern is None:
            return _block_mask(pair, _attending_blocks(firsts_BS, BLOCK), seq)
        layout = tables.get(("layout", pattern, device), lambda: local_layout(pattern, rule.axis).to(device))
        pair = and_masks(pair, _is_in_layout(layout, pattern.block))
        return _block_mask(pair, _attending_blocks_of(layout, pattern.block, firsts_BS), seq)

    return tables.get(key, build) if starts_BS is None else tables.derived(key, starts_BS, build)


def block_mask_between(
    attends: Attends, window: int, begins: tuple[int, int], size: int, device: torch.device, starts_BS: Tensor | None
) -> Any:
    """Return `block_mask` for the rows and the columns of two chunks of a sequence, of `size` tokens each.

    attends: by places in the chunks. begins: their first positions. starts_BS: of the whole sequence.
    """
    rows, columns = begins
    starts_BS = None if starts_BS is None else starts_BS[:, rows : rows + size]
    firsts_BS = _first_columns(torch.arange(rows, rows + size, device=device), window, starts_BS)
    return _block_mask(attends, _attending_blocks(firsts_BS - columns, BLOCK, rows - columns), size)


def _block_mask(attends: Attends, blocks: tuple[Tensor, Tensor], seq: int) -> Any:
    """Return what torch's `create_block_mask` returns, which stores several numbers per pair of tokens.

    blocks: as of `_attending_blocks`.
    """
    from torch.nn.attention.flex_attention import BlockMask

    some_BHQK, all_BHQK = blocks
    ordered = (*_ordered(some_BHQK & ~all_BHQK), *_ordered(all_BHQK))
    return BlockMask.from_kv_blocks(*ordered, BLOCK_SIZE=BLOCK, mask_mod=attends, seq_lengths=(seq, seq))


def _first_columns(rows_S: Tensor, window: int, starts_BS: Tensor | None) -> Tensor:
    """Return the first token that each token attends to, (B or 1, S): without a pattern, to all from there to itself.

    It never decreases along the sequence, because documents follow one another.
    """
    firsts_BS = (rows_S - window if window else torch.zeros_like(rows_S)).unsqueeze(0)
    return firsts_BS if starts_BS is None else torch.maximum(firsts_BS, starts_BS)


def _attending_blocks(firsts_BS: Tensor, size: int, shift: int = 0) -> tuple[Tensor, Tensor]:
    """Return whether some, and whether all tokens of a block attend to some, or all, of another: (B, 1, Q, K).

    firsts_BS: as of `_first_columns`, counted from the first column. shift: as of `alibi_change`.
    """
    seq, device = firsts_BS.shape[1], firsts_BS.device
    begins = torch.arange(0, seq, size, device=device)
    ends = begins + size - 1
    last = ends.clamp(max=seq - 1)
    first_BQ = firsts_BS[:, begins]  # of the block's first token
    last_BQ = firsts_BS[:, last]
    some_BQK = (first_BQ[..., None] <= last) & (last[:, None] + shift >= begins)
    # The last block may be shorter; its remainder attends to nothing.
    all_BQK = (last_BQ[..., None] <= begins) & (begins[:, None] + shift >= ends) & (ends[:, None] < seq)
    return some_BQK.unsqueeze(1), all_BQK.unsqueeze(1)


def _attending_blocks_of(layout: Tensor, block: int, firsts_BS: Tensor) -> tuple[Tensor, Tensor]:
    """Return `_attending_blocks` within a layout (N, blocks, blocks), by squares that are in one of its blocks each."""
    size = gcd(block, BLOCK)
    some, whole = _attending_blocks(firsts_BS, size)
    count, each = some.shape[-1], BLOCK // size
    squares = layout.repeat_interleave(block // size, 1).repeat_interleave(block // size, 2)[:, :count, :count]
    missing = -count % each

    def tiles(found: Tensor) -> Tensor:
        """(B, N, Q, K, squares of a block)."""
        padded = F.pad(found & squares, (0, missing, 0, missing))
        squares_BNQKs: Tensor = padded.unflatten(-1, (-1, each)).unflatten(-3, (-1, each)).transpose(-2, -3).flatten(-2)
        return squares_BNQKs

    return tiles(some).any(-1), tiles(whole).all(-1)


def _ordered(found_BHQK: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each row of blocks how many it reads, and their numbers first."""
    found = found_BHQK.to(torch.int32)
    order = found.argsort(dim=-1, descending=True, stable=True)
    return found.sum(-1, dtype=torch.int32), order.to(torch.int32)


# torch.compile needs functions that close over tensors and numbers only.


def attends(shift: Tensor | int, is_causal: bool, window: int, starts: tuple[Tensor, Tensor] | None) -> Attends:
    """Return which tokens of a chunk attend to which of another, by their places in them.

    shift: as of `alibi_change`. is_causal: whether it is the same chunk; otherwise rows come after columns. window: 0
    if it is wide enough for all. starts: of the rows' and the columns' documents, if attention must not cross them.
    """

    def both(batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        found = row >= column if is_causal else row >= 0
        if window:
            found = found & (row + shift - column <= window)
        if starts is not None:
            found = found & (starts[0][batch, row] == starts[1][batch, column])
        return found

    return both


def _is_in_layout(blocks: Tensor, size: int) -> Attends:
    per_head = len(blocks) > 1

    def attends(batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return blocks[head if per_head else 0, row // size, column // size]

    return attends
