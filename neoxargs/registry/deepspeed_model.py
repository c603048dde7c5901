"""Model changes by DeepSpeed: sections `sparse_attention` and `progressive_layer_drop`."""

from __future__ import annotations

from typing import Literal

from neoxargs.registry import data_file
from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count, Natural


class SparseAttention(Group, origin="DSC", effect="model", section="sparse_attention"):
    """DeepSpeed's block-sparse attention, for the layers that `sparsity` or `attention_config` makes sparse. Lengths
    are in blocks. In all patterns, a token never attends to later tokens."""

    mode: Literal["dense", "fixed", "variable", "bigbird", "bslongformer"] = param("fixed")
    """Pattern: `dense` reads all blocks; `fixed` has local windows and global blocks; `variable` is like `fixed`, with
    windows of various sizes; `bigbird` and `bslongformer` are those of BigBird and Longformer."""

    block: Count = param(16)
    """Side of a block in tokens; `seq_length` must be a multiple of it. DeepSpeed's kernels require 16, 32, 64 or
    128."""

    different_layout_per_head: bool = param(False)
    """Let every head have its own pattern, if the pattern has random parts or several forms."""

    num_local_blocks: Count = param(4)
    """fixed: length of a local window."""

    num_global_blocks: Natural = param(1)
    """fixed, bigbird: number of global blocks, to which all tokens attend, per window (fixed) or at the start
    (bigbird)."""

    attention: Literal["bidirectional", "unidirectional"] = param("bidirectional")
    """Kind of model that the pattern is built for. The causal mask is applied either way."""

    horizontal_global_attention: bool = param(False)
    """fixed, variable: let global blocks attend to everything as well. Needs `bidirectional`."""

    num_different_global_patterns: Count = param(1)
    """fixed: number of different choices of global blocks, which the heads use in turn. Needs
    `different_layout_per_head`."""

    num_random_blocks: Natural = param(0)
    """variable, bigbird: number of random blocks per row."""

    local_window_blocks: list[Count] = param([4])
    """variable: lengths of the first windows; the last one repeats."""

    global_block_indices: list[Natural] = param([0])
    """variable, bslongformer: which blocks are global."""

    global_block_end_indices: list[Natural] | None = param(None)
    """variable, bslongformer: the end (exclusive) of the range that starts at each of `global_block_indices`."""

    num_sliding_window_blocks: Count = param(3)
    """bigbird, bslongformer: width of the sliding window."""


data_file.declare(__name__, "progressive_layer_drop")
