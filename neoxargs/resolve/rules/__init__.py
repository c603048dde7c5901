"""Derived values and cross-checks: one module per subject, one small function per rule.

Importing this package registers all of them. They hold for every script that is launched; what only our own train.py
cannot run is in `checks/trainer.py`.
"""

from __future__ import annotations

from importlib import import_module

from neoxargs.resolve.rules.rule import CHECKS, DERIVATIONS

#: The modules of rules, in the order of their messages, but for those that others import.
SUBJECTS = tuple(
    import_module(f"{__name__}.{name}")
    for name in (
        "activations", "attention", "batch", "checkpoint", "data", "deepspeed", "finetuning", "frozen_model", "lora",
        "mlp", "model", "moe", "mup", "norms", "optimizer", "parallel", "precision", "preference", "recurrent",
        "rewards", "rotary", "run_length", "runtime", "rwkv", "schedule", "sequence_lengths", "soft_prompt",
        "transformer_engine", "usual", "usual_rates", "zero",
    )
)  # fmt: skip

__all__ = ["CHECKS", "DERIVATIONS", "SUBJECTS"]
