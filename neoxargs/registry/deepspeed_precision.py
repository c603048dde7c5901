"""Precision in DeepSpeed's JSON: sections `fp16`, `bf16`, `amp`, `torch_autocast` and `data_types`."""

from __future__ import annotations

from typing import Literal

from neoxargs.registry import data_file
from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count, Dtype, Natural, NonNegative


class Fp16(Group, origin="DSC", effect="engine", section="fp16"):
    """Training in fp16 with an fp32 copy of the weights; the loss is scaled so that small gradients do not become
    zero."""

    enabled: bool = param(False)
    """Compute in fp16. Same as `precision: fp16`; cannot be combined with `bf16.enabled`."""

    auto_cast: bool = param(False, effect="none", no_effect_reason="the inputs of a GPT are integers")
    """Cast floating point inputs of the model to fp16."""

    loss_scale: NonNegative = param(0.0)
    """Fixed loss scale. 0 means dynamic loss scale; `initial_scale_power`, `loss_scale_window`, `hysteresis`,
    `consecutive_hysteresis` and `min_loss_scale` are read only then."""

    initial_scale_power: Natural = param(16)
    """The dynamic loss scale starts at 2 to the power of this number. If it is too high, a few steps are skipped at the
    start."""

    loss_scale_window: Count = param(1000)
    """Number of steps without an overflow after which the dynamic loss scale is doubled."""

    hysteresis: Natural = param(2)
    """Number of overflows after which the dynamic loss scale is halved."""

    consecutive_hysteresis: bool = param(False)
    """Restart the count of overflows for `hysteresis` after every step without an overflow."""

    min_loss_scale: Natural = param(1)
    """Minimum of the dynamic loss scale. An overflow at this value stops the run."""

    fp16_master_weights_and_grads: bool = param(False)
    """Keep the optimizer's copy of weights and gradients in fp16 too, which halves their memory. Needs ZeRO stage 1, 2
    or 3 and the optimizer on the CPU."""

    fp16: bool | None = param(None, to=(), effect="none", no_effect_reason="DeepSpeed reads `fp16.enabled` instead")
    """No effect: only `enabled` counts. Accepted because old GPT-NeoX files contain it next to `enabled`; not sent,
    because DeepSpeed no longer accepts it."""

    type: Literal["fp16", "float16", "bf16", "bfloat16", "fp32"] | None = param(
        None,
        replaced_by={
            "bfloat16": {"precision": "bfloat16"},
            "bf16": {"precision": "bfloat16"},
            "fp16": {"precision": "fp16"},
            "float16": {"precision": "fp16"},
            "fp32": {"precision": "fp32"},
        },
        to=(),
    )
    """Retired: use `precision`. Old GPT-NeoX files set the data type here. Not sent, because DeepSpeed no longer
    accepts it."""


class Bf16(Group, origin="DSC", effect="engine", section="bf16", aliases="bfloat16"):
    """Training in bfloat16, which has the range of fp32 and needs no loss scaling."""

    enabled: bool = param(False)
    """Compute in bfloat16. Same as `precision: bfloat16`; cannot be combined with `fp16.enabled`."""

    immediate_grad_update: bool = param(False)
    """Add each gradient to its fp32 sum as soon as it is computed, instead of after the backward pass. Saves memory;
    read by the optimizer wrapper that pipeline parallelism and ZeRO 0 and 1 use."""

    check_grad_overflow: bool = param(True, aliases="check_overflow")
    """Look for infinities and NaNs in the gradients, and skip a step in which there are any."""

    bf16_master_weights_and_grads: bool = param(False)
    """Keep the optimizer's copy of weights and gradients in bfloat16 instead of fp32, which halves their memory. Needs
    ZeRO stage 1, 2 or 3."""

    bf16_optimizer_states: bool = param(False)
    """Keep the optimizer's moments in bfloat16 too. Needs `bf16_master_weights_and_grads`."""

    bf16: bool | None = param(None, to=(), effect="none", no_effect_reason="DeepSpeed reads `bf16.enabled` instead")
    """No effect: only `enabled` counts. Accepted because some GPT-NeoX files contain it next to `enabled`; not sent,
    because DeepSpeed does not accept it."""

    loss_scale: NonNegative | None = param(
        None, to=(), effect="none", no_effect_reason="bfloat16 needs no loss scaling"
    )
    """No effect: bfloat16 needs no loss scaling. Not sent, because DeepSpeed does not accept it."""

    initial_scale_power: Natural | None = param(
        None, to=(), effect="none", no_effect_reason="bfloat16 needs no loss scaling"
    )
    """No effect, like `bf16.loss_scale`."""

    loss_scale_window: Natural | None = param(
        None, to=(), effect="none", no_effect_reason="bfloat16 needs no loss scaling"
    )
    """No effect, like `bf16.loss_scale`."""

    hysteresis: Natural | None = param(None, to=(), effect="none", no_effect_reason="bfloat16 needs no loss scaling")
    """No effect, like `bf16.loss_scale`."""

    min_loss_scale: NonNegative | None = param(
        None, to=(), effect="none", no_effect_reason="bfloat16 needs no loss scaling"
    )
    """No effect, like `bf16.loss_scale`."""


data_file.declare(__name__, "amp", "torch_autocast")


class DataTypes(Group, origin="DSC", effect="engine", section="data_types"):
    """Data types of particular tensors, if they should differ from the data type of the computation."""

    grad_accum_dtype: Dtype | None = param(None)
    """Data type in which the gradients of micro batches are summed. If not set, train.py sums the bf16 gradients of
    several micro batches in fp32 unless the optimizer is offloaded, and reduces the sums over the ranks in fp32 unless
    `communication_data_type` is set; in all other cases, the sum has the data type of the computation. fp32 costs 4
    bytes per parameter, but avoids rounding errors."""

    param_dtype: Dtype | None = param(None)
    """Cast weights to this data type. Default: the data type of the computation."""

    buffer_dtype: Dtype | None = param(None)
    """Cast buffers (such as rotary frequencies) to this data type. If not set, they keep the data type that the model
    gave them, which is almost always right."""
