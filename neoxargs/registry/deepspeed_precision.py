"""Precision in DeepSpeed's JSON: sections `fp16`, `bf16`, `amp`, `torch_autocast` and `data_types`."""

from __future__ import annotations

from typing import Literal

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count, Natural, NonNegative

#: Every spelling of a floating point format that DeepSpeed understands.
Dtype = Literal[
    "fp16", "float16", "half", "torch.float16",
    "bf16", "bfloat16", "torch.bfloat16",
    "fp32", "float32", "float", "torch.float32",
]  # fmt: skip


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


class Amp(
    Group,
    origin="DSC",
    effect="none",
    no_effect_reason="it is used only by apex, which train.py does not use",
    section="amp",
    always_sent=("enabled",),
):
    """NVIDIA Apex's automatic mixed precision. Needs apex; cannot be combined with ZeRO, `fp16` or `bf16`. The keys
    besides `enabled` are arguments of `apex.amp.initialize`; None leaves the choice to `opt_level`."""

    enabled: bool = param(
        False,
        effect="not built",
        refused="it needs NVIDIA's Apex; the fp16 and bf16 sections replace Apex's mixed precision",
        instead="set precision: fp16 or precision: bf16",
    )
    """Wrap model and optimizer with apex amp."""

    opt_level: Literal["O0", "O1", "O2", "O3"] = param("O1")
    """One of O0 (all fp32), O1 (fp16 where it is known to be safe), O2 (nearly all fp16) and O3 (all fp16)."""

    cast_model_type: str | None = param(None)
    """Cast the model's weights to this type, such as `torch.float16`."""

    patch_torch_functions: bool | None = param(None)
    """Patch torch's functions so that they cast their inputs, as O1 does."""

    keep_batchnorm_fp32: bool | None = param(None)
    """Keep batch normalisation in fp32 even if the model is cast."""

    master_weights: bool | None = param(None)
    """Keep fp32 copies of the weights for the optimizer."""

    loss_scale: float | Literal["dynamic"] | None = param(None)
    """Fixed loss scale, or `dynamic` to adapt it."""

    cast_model_outputs: str | None = param(None)
    """Cast what the model returns to this type."""

    num_losses: Count = param(1)
    """Number of losses that are scaled separately."""

    verbosity: Literal[0, 1] = param(1)
    """0 silences apex's messages."""

    min_loss_scale: float | None = param(None)
    """Lower bound of the dynamic loss scale."""

    max_loss_scale: float = param(2.0**24)
    """Upper bound of the dynamic loss scale."""


class TorchAutocast(
    Group,
    origin="DSC",
    effect="none",
    no_effect_reason="it is used only with torch_autocast, which train.py does not use",
    section="torch_autocast",
):
    """torch's own automatic mixed precision: weights stay in fp32, and each operation chooses its type. Cannot be
    combined with `fp16`, `bf16` or `amp`."""

    enabled: bool = param(
        False,
        effect="not built",
        refused=(
            "autocast chooses the type of each torch operation, but deepy's tensor parallel layers, "
            "recomputation and cross entropy are custom operations, which compute in the type of the weights"
        ),
        instead="set precision: bf16, which also keeps fp32 weights for the optimizer",
    )
    """Run forward and loss under `torch.autocast`."""

    dtype: Dtype | None = param(None)
    """The 16-bit type that suitable operations use. If not set, torch chooses it for the device."""

    lower_precision_safe_modules: list[str] | None = param(None)
    """Full class names of modules whose gradients may be communicated in `dtype`. Default: torch's linear and
    convolution layers."""


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
