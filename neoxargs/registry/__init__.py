"""What exists: every parameter of DeepSpeed's launcher, DeepSpeed's JSON, Megatron and GPT-NeoX.

One module per subject; importing this package declares them all. `declare.py` holds the mechanism.
"""

from __future__ import annotations

from neoxargs.registry import (
    activations,
    architectures,
    batch,
    checkpoint,
    data,
    deepspeed_activations,
    deepspeed_compression,
    deepspeed_data,
    deepspeed_monitors,
    deepspeed_more,
    deepspeed_optimizer,
    deepspeed_parallel,
    deepspeed_precision,
    deepspeed_tuning,
    deepspeed_zero,
    generation,
    logging,
    model,
    optimizer,
    parallel,
    post_training,
    precision,
    regularization,
    retrieval,
    runner,
    schedule,
    training,
    zero,
)
from neoxargs.registry.declare import (
    ABSENT,
    GROUPS,
    Destination,
    Group,
    Origin,
    Parameter,
    Registry,
    descriptions,
    normal,
    param,
)

SUBJECTS = (
    runner,
    parallel,
    batch,
    model,
    architectures,
    regularization,
    precision,
    deepspeed_precision,
    zero,
    deepspeed_zero,
    optimizer,
    deepspeed_optimizer,
    schedule,
    activations,
    deepspeed_activations,
    data,
    training,
    checkpoint,
    logging,
    deepspeed_monitors,
    deepspeed_more,
    deepspeed_data,
    deepspeed_compression,
    deepspeed_parallel,
    deepspeed_tuning,
    generation,
    post_training,
    retrieval,
)

#: The registry as shipped; `--plugin` adds groups to it before anything is resolved.
REGISTRY = Registry(GROUPS)

__all__ = [
    "ABSENT", "REGISTRY", "SUBJECTS", "Destination", "Group", "Origin", "Parameter", "Registry", "descriptions",
    "normal", "param",
]  # fmt: skip
