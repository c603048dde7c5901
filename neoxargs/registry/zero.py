"""ZeRO at top level: GPT-NeoX's keys; DeepSpeed's section is in deepspeed_zero.py."""

from __future__ import annotations

from typing import Literal

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count


class ZeroShortcuts(Group, origin="NeoX", effect="engine"):
    """Top-level spellings of five keys of `zero_optimization`."""

    zero_stage: Literal[0, 1, 2, 3] = param(derived=True)
    """What is partitioned across the data parallel ranks: 0 nothing, 1 optimizer states, 2 gradients too, 3 weights
    too. The same as `zero_optimization.stage`, which new files should use."""

    zero_reduce_scatter: bool = param(derived=True)
    """The same as `zero_optimization.reduce_scatter`, which new files should use."""

    zero_contiguous_gradients: bool = param(derived=True, aliases="zero_contigious_gradients")
    """The same as `zero_optimization.contiguous_gradients`, which new files should use."""

    zero_reduce_bucket_size: Count = param(derived=True)
    """The same as `zero_optimization.reduce_bucket_size`, which new files should use; in elements."""

    zero_allgather_bucket_size: Count = param(derived=True)
    """The same as `zero_optimization.allgather_bucket_size`, which new files should use; in elements."""
