"""Derived values and cross-checks: one module per subject, one small function per rule.

Importing this package registers all of them. They hold for every script that is launched; what only our own train.py
cannot run is in `checks/trainer.py`.
"""

from __future__ import annotations

from neoxargs.resolve.rules import (
    activations,
    attention,
    batch,
    checkpoint,
    data,
    deepspeed,
    finetuning,
    frozen_model,
    lora,
    mlp,
    model,
    moe,
    mup,
    norms,
    optimizer,
    parallel,
    precision,
    preference,
    recurrent,
    rewards,
    rotary,
    run_length,
    runtime,
    rwkv,
    schedule,
    sequence_lengths,
    soft_prompt,
    transformer_engine,
    usual,
    usual_rates,
    zero,
)
from neoxargs.resolve.rules.rule import CHECKS, DERIVATIONS

SUBJECTS = (
    parallel, batch, model, mlp, moe, attention, recurrent, rwkv, norms, rotary, precision, zero, optimizer, schedule,
    sequence_lengths, mup, activations, data, finetuning, preference, rewards, checkpoint,
    run_length, runtime, deepspeed, transformer_engine, soft_prompt, lora, frozen_model, usual, usual_rates,
)  # fmt: skip

__all__ = ["CHECKS", "DERIVATIONS", "SUBJECTS"]
