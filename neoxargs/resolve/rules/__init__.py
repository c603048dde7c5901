"""What follows from what was written, and what cannot be: one module per subject, each rule a small function.

Importing this package registers them all. `unsupported` is apart: it judges what our own train.py can run, while
these hold for every script that is launched.
"""

from __future__ import annotations

from neoxargs.resolve.rules import (
    activations,
    attention,
    batch,
    checkpoint,
    data,
    deepspeed,
    model,
    mup,
    optimizer,
    parallel,
    precision,
    runtime,
    schedule,
    zero,
)
from neoxargs.resolve.rules.rule import CHECKS, DERIVATIONS

SUBJECTS = (
    parallel, batch, model, attention, precision, zero, optimizer, schedule, mup, activations, data, checkpoint,
    runtime, deepspeed,
)  # fmt: skip

__all__ = ["CHECKS", "DERIVATIONS", "SUBJECTS"]
