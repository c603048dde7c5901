"""How the learning rate changes during a run, as Megatron writes it."""

from __future__ import annotations

from typing import Literal

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count, Fraction, NonNegative


class Schedule(Group, origin="Meg"):
    """Warm-up and decay of the learning rate."""

    lr_decay_style: Literal["constant", "linear", "cosine", "exponential"] = param("linear", megatron="lr-decay-style")
    lr_decay_iters: Count = param(derived=True, megatron="lr-decay-iters")
    lr_decay_fraction: Fraction | None = param(None, origin="NeoX")
    min_lr: NonNegative = param(0.0, megatron="min-lr")
    warmup: Fraction = param(0.01, megatron="lr-warmup-fraction")
    override_lr_scheduler: bool = param(False, megatron="override-opt-param-scheduler")
    use_checkpoint_lr_scheduler: bool = param(False, megatron="use-checkpoint-opt-param-scheduler")
