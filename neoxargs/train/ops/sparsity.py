"""Block-sparse attention: the blocks that each block of tokens attends to, in DeepSpeed's sparse attention patterns.

A pattern is laid out once for the model's `seq_length` and always combined with the causal mask. A shorter sequence
uses the upper left part of it, so that generation attends to the same blocks as training. Random blocks depend on the
run's seed, the layer and the head only; DeepSpeed draws them independently on every rank.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from neoxargs.config.config import Config
from neoxargs.facts.layer_kinds import layer_kind
from neoxargs.train.ops.sdpa import causal_mask
from neoxargs.train.process.mesh import Axis

#: Pairs (row, column) of blocks: the row's tokens attend to the column's.
Blocks = set[tuple[int, int]]
#: Layer kinds of `attention_config` with dense causal attention.
DENSE = ("global", "flash")


@dataclass(frozen=True)
class Pattern:
    """Sparsity pattern of one layer: its kind and the settings of `sparsity_config`."""

    kind: str
    seq_length: int
    heads: int
    block: int = 16
    different_layout_per_head: bool = False
    num_local_blocks: int | None = None
    num_global_blocks: int = 1
    num_different_global_patterns: int = 1
    horizontal_global_attention: bool = False
    num_random_blocks: int | None = None
    local_window_blocks: tuple[int, ...] = (4,)
    global_block_indices: tuple[int, ...] = (0,)
    global_block_end_indices: tuple[int, ...] | None = None
    num_sliding_window_blocks: int | None = None
    attention: str = "unidirectional"
    seed: str = ""

    @property
    def blocks(self) -> int:
        return self.seq_length // self.block


def layer_pattern(config: Config, layer: int, seed: int) -> Pattern | None:
    """Return the pattern of a layer (counted from 0), or None for dense causal attention."""
    kind = layer_kind(config, layer)
    if kind in DENSE:
        return None
    settings: Mapping[str, Any] = config.attention.sparsity_config or {}
    chosen: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()
    }
    pattern = Pattern(kind, config.shape.seq_length, config.shape.num_attention_heads, seed=f"{seed} {layer}", **chosen)
    # Without random blocks the pattern has no seed, so that all layers share one mask.
    return pattern if _random_blocks(pattern) else replace(pattern, seed="")


def layout(pattern: Pattern) -> Tensor:
    """(N, blocks, blocks): which blocks are attended to, before the causal mask."""
    heads = pattern.heads if pattern.different_layout_per_head else 1
    blocks = torch.zeros(heads, pattern.blocks, pattern.blocks, dtype=torch.bool)
    for head in range(heads):
        rows, columns = zip(*_KINDS[pattern.kind](pattern, head), strict=True)
        blocks[head, list(rows), list(columns)] = True
    return blocks.expand(pattern.heads, -1, -1)


def token_mask(pattern: Pattern, axis: Axis, device: torch.device) -> Tensor:
    """(N, S, C): whether the row's token attends to the column's. N: heads of this rank, or 1 if all agree."""
    blocks = local_layout(pattern, axis).to(device)
    tokens = blocks.repeat_interleave(pattern.block, 1).repeat_interleave(pattern.block, 2)
    return tokens & causal_mask(pattern.seq_length, device)


def local_layout(pattern: Pattern, axis: Axis) -> Tensor:
    """Return the layout (N, blocks, blocks). N: heads of this rank, or 1 if all agree."""
    full = layout(pattern)
    return full.chunk(axis.size)[axis.rank] if pattern.different_layout_per_head else full[:1]


def window_mask(seq: int, width: int, device: torch.device) -> Tensor:
    """(S, C): the row's token attends to itself and to the `width` tokens before it."""
    return causal_mask(seq, device).triu(-width)


def _fixed(pattern: Pattern, head: int) -> Blocks:
    """Adjacent windows, and in each window some blocks that all later blocks attend to (arXiv:1904.10509)."""
    count, wide = pattern.blocks, pattern.num_local_blocks or 4
    # The first global block within a window: they end each window, and other patterns of heads take those before.
    summary = wide - (1 + head % pattern.num_different_global_patterns) * pattern.num_global_blocks
    full_windows = count - count % wide
    firsts = list(range(summary, full_windows, wide))
    if full_windows < count:  # the last window is shorter
        firsts.append(min(full_windows + summary, count - pattern.num_global_blocks))
    global_blocks = [block for first in firsts for block in range(first, first + pattern.num_global_blocks)]
    lengths = [min(wide, count - start) for start in range(0, count, wide)]
    return _windows(lengths) | _global(pattern, global_blocks, pattern.horizontal_global_attention)


def _variable(pattern: Pattern, head: int) -> Blocks:
    """Windows of the lengths in `local_window_blocks`, the given global blocks, and random blocks."""
    count, lengths, left = pattern.blocks, [], pattern.blocks
    sizes = iter(pattern.local_window_blocks)
    size = next(sizes)
    # The last length repeats until the sequence is covered.
    while left > 0:
        lengths.append(min(size, left))
        left -= size
        size = next(sizes, size)
    blocks = _windows(lengths) | _random(pattern, head, [range(count)] * count)
    return blocks | _global(pattern, _global_blocks(pattern), pattern.horizontal_global_attention)


def _local(pattern: Pattern, head: int) -> Blocks:
    """A sliding window, whose width is `num_local_blocks` or `num_sliding_window_blocks`."""
    return _sliding(pattern, pattern.num_local_blocks or pattern.num_sliding_window_blocks or 4)


def _bigbird(pattern: Pattern, head: int) -> Blocks:
    """A sliding window, the first blocks, and random blocks (arXiv:2007.14062)."""
    global_blocks = range(min(pattern.num_global_blocks, pattern.blocks))
    # Of bidirectional attention, to which the causal mask still applies.
    both = pattern.attention == "bidirectional"
    ranges = [range(pattern.blocks if both else row + 1) for row in range(pattern.blocks)]
    near = _sliding(pattern, pattern.num_sliding_window_blocks or 3)
    return near | _random(pattern, head, ranges) | _global(pattern, global_blocks, True)


def _longformer(pattern: Pattern, head: int) -> Blocks:
    """A sliding window and the given global blocks (arXiv:2004.05150)."""
    near = _sliding(pattern, pattern.num_sliding_window_blocks or 3)
    return near | _global(pattern, _global_blocks(pattern), True)


_KINDS: dict[str, Callable[[Pattern, int], Blocks]] = {
    "sparse_fixed": _fixed,
    "sparse_variable": _variable,
    "local": _local,
    "bigbird": _bigbird,
    "bslongformer": _longformer,
}


def _windows(lengths: Iterable[int]) -> Blocks:
    """Every block attends to all blocks of its window."""
    blocks: Blocks = set()
    start = 0
    for length in lengths:
        inside = range(start, start + length)
        blocks |= {(row, column) for row in inside for column in inside}
        start += length
    return blocks


def _sliding(pattern: Pattern, width: int) -> Blocks:
    """Every block attends to width // 2 blocks on each side and to itself."""
    count, half = pattern.blocks, width // 2
    return {(row, column) for row in range(count) for column in range(max(0, row - half), min(row + half + 1, count))}


def _global(pattern: Pattern, blocks: Sequence[int], attend: bool) -> Blocks:
    """All blocks attend to `blocks`, and these to all if they `attend`."""
    attended = {(row, column) for row in range(pattern.blocks) for column in blocks}
    return attended | {(column, row) for row, column in attended} if attend else attended


def _global_blocks(pattern: Pattern) -> list[int]:
    firsts, ends = pattern.global_block_indices, pattern.global_block_end_indices
    spans = zip(firsts, ends or [first + 1 for first in firsts], strict=True)
    return [block for first, end in spans for block in range(first, min(end, pattern.blocks))]


def _random(pattern: Pattern, head: int, ranges: Iterable[range]) -> Blocks:
    """Draw the random blocks of each row from its range, or take the whole range if it has fewer."""
    generator = random.Random(f"{pattern.seed} {head}")
    wanted = _random_blocks(pattern)
    return {
        (row, column)
        for row, choice in enumerate(ranges)
        for column in generator.sample(choice, min(wanted, len(choice)))
    }


def _random_blocks(pattern: Pattern) -> int:
    """Return the number of random blocks per row. None stands for GPT-NeoX's default; 0 means none."""
    defaults = {"bigbird": 1, "sparse_variable": 0}
    if pattern.kind not in defaults:
        return 0
    return defaults[pattern.kind] if pattern.num_random_blocks is None else pattern.num_random_blocks
