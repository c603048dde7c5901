"""In what numbers the model computes, and how small gradients are kept from vanishing in fp16."""

from __future__ import annotations

from typing import Literal

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count, NonNegative, Positive


class Precision(Group, origin="Meg"):
    """Number format and loss scaling."""

    precision: Literal["fp32", "fp16", "bf16", "bfloat16"] = param(derived=True, origin="NeoX")
    fp32_allreduce: bool = param(False, origin=("Meg", "DSC"), megatron="accumulate-allreduce-grads-in-fp32")
    loss_scale: NonNegative | None = param(None, megatron="loss-scale")
    dynamic_loss_scale: bool = param(derived=True, origin="NeoX")
    loss_scale_window: Count = param(1000, megatron="loss-scale-window")
    min_scale: Positive = param(1, megatron="min-loss-scale")
    hysteresis: Count = param(2, megatron="hysteresis")
    fp16_lm_cross_entropy: bool = param(False, megatron="fp16-lm-cross-entropy")
