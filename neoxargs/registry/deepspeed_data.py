"""Data efficiency: DeepSpeed's sections `curriculum_learning` and `data_efficiency`, which order, shorten and skip
data.

They act on data loaders and layers that DeepSpeed itself builds or wraps.
"""

from __future__ import annotations

from neoxargs.registry import data_file

data_file.declare(
    __name__,
    "curriculum_learning",
    "data_efficiency",
    "data_efficiency.data_sampling",
    "data_efficiency.data_sampling.curriculum_learning",
    "data_efficiency.data_sampling.dynamic_batching",
    "data_efficiency.data_routing",
    "data_efficiency.data_routing.random_ltd",
    "data_efficiency.data_routing.random_ltd.random_ltd_schedule",
    "data_efficiency.data_routing.random_ltd.layer_token_lr_schedule",
)
