"""What exists: every parameter of DeepSpeed's launcher, DeepSpeed's JSON, Megatron and GPT-NeoX.

One module per subject; importing this package declares them all. `declare.py` holds the mechanism.
"""

from __future__ import annotations

from neoxargs.registry import (
    activations,
    batch,
    checkpoint,
    data,
    generation,
    logging,
    model,
    optimizer,
    parallel,
    post_training,
    precision,
    regularization,
    retrieval,
    schedule,
    training,
    variants,
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
)

SUBJECTS = (
    parallel,
    batch,
    model,
    variants,
    regularization,
    precision,
    zero,
    optimizer,
    schedule,
    activations,
    data,
    training,
    checkpoint,
    logging,
    generation,
    post_training,
    retrieval,
)

#: The registry as shipped; `--plugin` adds groups to it before anything is resolved.
REGISTRY = Registry(GROUPS)

__all__ = [
    "ABSENT", "REGISTRY", "SUBJECTS", "Destination", "Group", "Origin", "Parameter", "Registry", "descriptions",
    "normal",
]  # fmt: skip
