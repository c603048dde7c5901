"""Precision and loss scaling: GPT-NeoX's and Megatron's keys at top level; DeepSpeed's sections are in
deepspeed_precision.py."""

from __future__ import annotations

from typing import Literal

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count, NonNegative, Positive


class Precision(Group, origin="Meg", effect="engine"):
    """Data type and loss scaling."""

    precision: Literal["fp32", "fp16", "bf16", "bfloat16", "float32", "float", "float16", "half"] = param(
        derived=True, origin="NeoX"
    )
    """Data type in which the model computes: `fp32`, `fp16` (needs loss scaling) or `bf16`; torch's names
    (`bfloat16`, ...) are accepted too. If not set, it follows the `fp16` and `bf16` sections; without them,
    it is fp32."""

    float32_matmul_precision: Literal["highest", "high", "medium"] = param(
        "highest", origin="NeoX", ours=True, effect="run"
    )
    """Precision of fp32 matrix multiplications, by its name in torch. `highest` is fp32. `high` is TF32 on GPUs since
    Ampere, up to eight times as fast: the inputs are rounded to 10 bits of mantissa, and sums are fp32. `medium`
    permits bf16 as well. Matters for `precision: fp32`, and has no effect on 16-bit matrix multiplications."""

    fp32_allreduce: bool = param(False, origin=("Meg", "DSC"), megatron="accumulate-allreduce-grads-in-fp32")
    """Sums gradients of data parallel ranks in fp32 although the model computes in 16 bits. Doubles the communication
    volume, but avoids rounding errors. Without it, train.py does so only for gradients that it has accumulated in fp32;
    to sum these in bf16 too, set `communication_data_type: bf16`."""

    loss_scale: NonNegative | None = param(None, megatron="loss-scale")
    """Constant factor on the loss, so that small fp16 gradients do not vanish; a power of 2. If it is 0 or not set, the
    loss scale is dynamic. Only for fp16."""

    dynamic_loss_scale: bool = param(
        derived=True, origin="NeoX", effect="none", no_effect_reason="it is derived from loss_scale"
    )
    """True if the loss scale is dynamic, that is, if `loss_scale` is 0 or not set. Computed."""

    loss_scale_window: Count = param(1000, megatron="loss-scale-window")
    """Number of steps without an overflow after which the dynamic loss scale is doubled."""

    min_scale: Positive = param(1, megatron="min-loss-scale")
    """Minimum of the dynamic loss scale."""

    hysteresis: Count = param(2, megatron="hysteresis")
    """Number of overflows after which the dynamic loss scale is halved."""

    fp16_lm_cross_entropy: bool = param(False, megatron="fp16-lm-cross-entropy")
    """Leaves the logits and their gradient in fp16 instead of fp32 while the cross entropy is computed; sums over the
    vocabulary are fp32. Halves the memory for them at a loss of accuracy; only with `precision: fp16`."""
