"""ZeRO in DeepSpeed's JSON: section `zero_optimization` and its inner sections.

Sizes are counted in elements (numbers), not bytes, unless a description says otherwise.
"""

from __future__ import annotations

from neoxargs.registry import data_file

data_file.declare(
    __name__,
    "zero_optimization",
    "zero_optimization.offload_param",
    "zero_optimization.offload_optimizer",
    "zero_optimization.zenflow",
    "zero_optimization.zeropp_loco_param",
    "zero_optimization.leaf_module",
)
