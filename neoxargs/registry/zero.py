"""ZeRO as NeoX writes it at top level; DeepSpeed's section is in deepspeed_zero.py."""

from __future__ import annotations

from typing import Literal

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count


class ZeroShortcuts(Group, origin="NeoX"):
    """Top-level spellings of five keys of `zero_optimization`."""

    zero_stage: Literal[0, 1, 2, 3] = param(derived=True)
    zero_reduce_scatter: bool = param(derived=True)
    zero_contiguous_gradients: bool = param(derived=True, renamed_from="zero_contigious_gradients")
    zero_reduce_bucket_size: Count = param(derived=True)
    zero_allgather_bucket_size: Count = param(derived=True)
