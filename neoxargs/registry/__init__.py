"""The registry: every parameter of DeepSpeed's launcher, DeepSpeed's JSON, Megatron and GPT-NeoX.

Each subject has a module; importing this package declares all parameters. `declare.py` is the mechanism.
"""

from __future__ import annotations

from importlib import import_module

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

#: The modules that declare parameters, in the order of the parameter table and of all generated files.
SUBJECTS = tuple(
    import_module(f"{__name__}.{name}")
    for name in (
        "runner", "parallel", "deepspeed_parallel", "batch",
        "model", "rotary", "deepspeed_model", "architectures", "lora", "moe", "mup", "regularization",
        "precision", "deepspeed_precision", "zero", "deepspeed_zero", "optimizer", "deepspeed_optimizer", "schedule",
        "deepspeed_engine", "activations", "deepspeed_activations", "data", "deepspeed_data", "training",
        "checkpoint", "deepspeed_checkpoint", "logging", "deepspeed_logging", "deepspeed_compression",
        "deepspeed_tuning", "generation", "post_training", "retrieval",
    )
)  # fmt: skip

#: The registry as shipped; `--plugin` adds groups to it before anything is resolved.
REGISTRY = Registry(group for module in SUBJECTS for group in GROUPS if group.__module__ == module.__name__)

__all__ = [
    "ABSENT", "REGISTRY", "SUBJECTS", "Destination", "Group", "Origin", "Parameter", "Registry", "descriptions",
    "normal", "param",
]  # fmt: skip
