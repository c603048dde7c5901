"""Block-sparse attention: which blocks of tokens each block reads, in the patterns of DeepSpeed's sparse attention.

A pattern is laid out once for the model's `seq_length` and always combined with the causal order; a shorter sequence
sees its part of it, so that generating reads what training read. Random blocks depend on the run's seed, the
layer and the head only, where DeepSpeed draws anew on every rank.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from neoxargs.registry.model import Shape
from neoxargs.resolve.config import Config
from neoxargs.train.kernels.sdpa import causal
from neoxargs.train.process.mesh import Axis

#: Pairs (row, column) of blocks of which the row's tokens read the column's.
Blocks = set[tuple[int, int]]
#: Layers that see everything before them.
DENSE = ("global", "flash")


@dataclass(frozen=True)
class Pattern:
    """What the layers of one kind read."""

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

    @property
    def both_ways(self) -> bool:
        """Is it laid out as for a model that sees what follows? What follows is hidden all the same."""
        return self.attention == "bidirectional"


def pattern(config: Config, layer: int, seed: int) -> Pattern | None:
    """What the layer (counted from 0) reads, or None where it reads everything before it."""
    kind = layer_kind(config, layer)
    if kind in DENSE:
        return None
    settings: Mapping[str, Any] = config.attention.sparsity_config or {}
    chosen = {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
    return _pattern(kind, config.shape, f"{seed} {layer}", chosen)


def layer_kind(config: Config, layer: int) -> str:
    """The layer's name in `attention_config`."""
    known = "attention_config" in config.values
    return str(config.attention.attention_config[layer]) if known else "global"


def _pattern(kind: str, shape: Shape, seed: str, settings: Mapping[str, Any]) -> Pattern:
    made = Pattern(kind, shape.seq_length, shape.num_attention_heads, seed=seed, **settings)
    # Without random blocks all layers have one pattern, and one mask.
    return made if _random_blocks(made) else Pattern(kind, shape.seq_length, shape.num_attention_heads, **settings)


def layout(pattern: Pattern) -> Tensor:
    """(heads, blocks, blocks): which blocks are read, before the causal order hides what follows."""
    heads = pattern.heads if pattern.different_layout_per_head else 1
    found = torch.zeros(heads, pattern.blocks, pattern.blocks, dtype=torch.bool)
    for head in range(heads):
        rows, columns = zip(*_KINDS[pattern.kind](pattern, head), strict=True)
        found[head, list(rows), list(columns)] = True
    return found.expand(pattern.heads, -1, -1)


@lru_cache(maxsize=8)
def visible(pattern: Pattern, axis: Axis, device: torch.device) -> Tensor:
    """(heads / tensor ranks, or 1 if all read the same, seq, seq): does the row's token read the column's?"""
    blocks = own_layout(pattern, axis).to(device)
    tokens = blocks.repeat_interleave(pattern.block, 1).repeat_interleave(pattern.block, 2)
    return tokens & causal(pattern.seq_length, device)


def own_layout(pattern: Pattern, axis: Axis) -> Tensor:
    """(heads / tensor ranks, or 1 if all read the same, blocks, blocks)."""
    whole = layout(pattern)
    return whole.chunk(axis.size)[axis.rank] if pattern.different_layout_per_head else whole[:1]


def window(seq: int, width: int, device: torch.device) -> Tensor:
    """(seq, seq): the row's token reads itself and `width` tokens before it."""
    return causal(seq, device).triu(-width)


def _fixed(pattern: Pattern, head: int) -> Blocks:
    """Windows side by side, and of every window some blocks that all later ones read (arXiv:1904.10509)."""
    count, wide = pattern.blocks, pattern.num_local_blocks or 4
    summary = wide - (1 + head % pattern.num_different_global_patterns) * pattern.num_global_blocks
    whole = count - count % wide
    firsts = list(range(summary, whole, wide))
    if whole < count:  # a last window that is cut short
        firsts.append(min(whole + summary, count - pattern.num_global_blocks))
    read = [block for first in firsts for block in range(first, first + pattern.num_global_blocks)]
    lengths = [min(wide, count - start) for start in range(0, count, wide)]
    return _windows(lengths) | _columns(pattern, read) | _rows(pattern, read, pattern.horizontal_global_attention)


def _variable(pattern: Pattern, head: int) -> Blocks:
    """Windows of chosen lengths, chosen global blocks, random ones."""
    count, lengths, left = pattern.blocks, [], pattern.blocks
    sizes = iter(pattern.local_window_blocks)
    size = next(sizes)
    while left > 0:
        lengths.append(min(size, left))
        left -= size
        size = next(sizes, size)
    read = _global_blocks(pattern)
    ranges = [range(count)] * count
    found = _windows(lengths) | _columns(pattern, read) | _draw(pattern, head, ranges)
    return found | _rows(pattern, read, pattern.horizontal_global_attention)


def _local(pattern: Pattern, head: int) -> Blocks:
    """A window that slides; `num_local_blocks` is another name for its width."""
    return _sliding(pattern, pattern.num_local_blocks or pattern.num_sliding_window_blocks or 4)


def _bigbird(pattern: Pattern, head: int) -> Blocks:
    """A sliding window, the first blocks, random ones (arXiv:2007.14062)."""
    read = range(min(pattern.num_global_blocks, pattern.blocks))
    ranges = [range(pattern.blocks if pattern.both_ways else row + 1) for row in range(pattern.blocks)]
    near = _sliding(pattern, pattern.num_sliding_window_blocks or 3)
    return near | _draw(pattern, head, ranges) | _columns(pattern, read) | _rows(pattern, read, True)


def _longformer(pattern: Pattern, head: int) -> Blocks:
    """A sliding window and chosen global blocks (arXiv:2004.05150)."""
    read = _global_blocks(pattern)
    near = _sliding(pattern, pattern.num_sliding_window_blocks or 3)
    return near | _columns(pattern, read) | _rows(pattern, read, True)


_KINDS: dict[str, Callable[[Pattern, int], Blocks]] = {
    "sparse_fixed": _fixed,
    "sparse_variable": _variable,
    "local": _local,
    "bigbird": _bigbird,
    "bslongformer": _longformer,
}


def _windows(lengths: Iterable[int]) -> Blocks:
    """Every block reads the window it lies in."""
    found: Blocks = set()
    start = 0
    for length in lengths:
        inside = range(start, start + length)
        found |= {(row, column) for row in inside for column in inside}
        start += length
    return found


def _sliding(pattern: Pattern, width: int) -> Blocks:
    """Every block reads half a width to each side."""
    count, half = pattern.blocks, width // 2
    return {(row, column) for row in range(count) for column in range(max(0, row - half), min(row + half + 1, count))}


def _columns(pattern: Pattern, read: Iterable[int]) -> Blocks:
    return {(row, column) for row in range(pattern.blocks) for column in read}


def _rows(pattern: Pattern, reading: Iterable[int], wanted: bool) -> Blocks:
    return {(row, column) for row in reading for column in range(pattern.blocks)} if wanted else set()


def _global_blocks(pattern: Pattern) -> list[int]:
    firsts, ends = pattern.global_block_indices, pattern.global_block_end_indices
    spans = zip(firsts, ends or [first + 1 for first in firsts], strict=True)
    return [block for first, end in spans for block in range(first, min(end, pattern.blocks))]


def _draw(pattern: Pattern, head: int, ranges: Iterable[range]) -> Blocks:
    """For every row so many blocks of its range, or all of them if there are fewer."""
    dice = random.Random(f"{pattern.seed} {head}")
    wanted = _random_blocks(pattern)
    return {
        (row, column) for row, choice in enumerate(ranges) for column in dice.sample(choice, min(wanted, len(choice)))
    }


def _random_blocks(pattern: Pattern) -> int:
    """GPT-NeoX's defaults; None is not 0, which turns them off."""
    usual = {"bigbird": 1, "sparse_variable": 0}
    if pattern.kind not in usual:
        return 0
    return usual[pattern.kind] if pattern.num_random_blocks is None else pattern.num_random_blocks
