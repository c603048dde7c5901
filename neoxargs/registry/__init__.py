"""What exists: every parameter of DeepSpeed's launcher, DeepSpeed's JSON, Megatron and GPT-NeoX.

One module per subject; importing this package declares them all. `declare.py` holds the mechanism.
"""

from __future__ import annotations

from neoxargs.registry import model
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

SUBJECTS = (model,)

#: The registry as shipped; `--plugin` adds groups to it before anything is resolved.
REGISTRY = Registry(GROUPS)

__all__ = [
    "ABSENT", "REGISTRY", "SUBJECTS", "Destination", "Group", "Origin", "Parameter", "Registry", "descriptions",
    "normal",
]  # fmt: skip
