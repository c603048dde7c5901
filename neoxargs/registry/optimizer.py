"""Optimizer at top level: keys of GPT-NeoX and Megatron; DeepSpeed's section is in deepspeed_optimizer.py."""

from __future__ import annotations

from typing import Literal

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import BelowOne, NonNegative, Positive


class OptimizerOptions(Group, origin="Meg", effect="optimizer"):
    """The optimizer and its hyperparameters."""

    optimizer_type: Literal["adam", "onebitadam", "cpu_adam", "cpu_torch_adam", "sm3", "madgrad_wd", "sgd", "lion"] = (
        param(derived=True, origin="NeoX", megatron="optimizer")
    )
    """Which optimizer runs. Derived from `optimizer.type`, with the same value; without either it is Adam."""

    lr: NonNegative = param(derived=True, megatron="lr")
    """Peak learning rate, reached after warm-up. Derived from `optimizer.params.lr` if that is set; set only one of
    them."""

    adam_beta1: BelowOne = param(0.9, megatron="adam-beta1")
    """Adam's decay of the running mean of gradients. The same as the first value of `optimizer.params.betas`, which
    newer files use."""

    adam_beta2: BelowOne = param(0.999, megatron="adam-beta2")
    """Adam's decay of the running mean of squared gradients. The same as the second value of `optimizer.params.betas`,
    which newer files use."""

    adam_eps: Positive = param(1e-8, megatron="adam-eps")
    """Small number in the denominator of Adam's step. The same as `optimizer.params.eps`, which newer files use."""

    clip_grad: NonNegative | None = param(None, megatron="clip-grad")
    """Maximum norm of the gradient of all weights; a larger gradient is scaled down to it. The same as
    `gradient_clipping`, which is sent to DeepSpeed; if both are set, they must be equal."""

    use_bnb_optimizer: bool = param(
        False,
        origin="NeoX",
        effect="not built",
        refused=(
            "bitsandbytes' optimizer runs only on CUDA, and with it GPT-NeoX adds a norm to the position "
            "embedding, which changes the model"
        ),
        instead=(
            "partition the optimizer state with zero_stage: 1, or keep it in host memory with "
            "zero_optimization.offload_optimizer"
        ),
    )
    """With `optimizer_type: adam`, uses the 8-bit optimizer states of the bitsandbytes package, which need a quarter of
    the memory."""

    onebitadam: bool = param(False, origin="NeoX", replaced_by={True: {"optimizer.type": "OneBitAdam"}, False: {}})
    """Retired in April 2021: use `optimizer: {type: OneBitAdam}`. After `freeze_step` steps of ordinary Adam, this
    optimizer communicates one bit per value among the data parallel ranks. It works on any device, in any precision,
    and with pipeline and tensor parallelism, but not with ZeRO."""

    cpu_optimizer: bool = param(
        False, megatron="optimizer-cpu-offload", replaced_by={True: {"optimizer.type": "cpu_adam"}, False: {}}
    )
    """Retired in April 2021: use `optimizer: {type: cpu_adam}`, DeepSpeed's compiled Adam for CPUs. With a GPU, it
    needs the optimizer states in host memory: `zero_optimization: {stage: 1, offload_optimizer: {device: cpu}}`. May be
    combined with `optimizer: {type: Adam}`."""

    cpu_torch_adam: bool = param(
        False,
        megatron="use-torch-optimizer-for-cpu-offload",
        replaced_by={True: {"optimizer.type": "cpu_torch_adam"}, False: {}},
    )
    """Retired in April 2021: use `optimizer: {type: cpu_torch_adam}`, PyTorch's own Adam, which runs on the device that
    holds the optimizer states (see `zero_optimization.offload_optimizer`). May be combined with `cpu_optimizer` and
    `optimizer: {type: Adam}`."""

    sm3: bool = param(False, origin="NeoX", replaced_by={True: {"optimizer.type": "sm3"}, False: {}})
    """Retired in April 2021: use `optimizer: {type: sm3}`."""

    momentum: BelowOne | None = param(None, origin="NeoX")
    """Retired in April 2021: use `optimizer: {params: {momentum: ...}}`."""

    no_adamw: bool = param(False, origin="NeoX", replaced_by={True: {"optimizer.params.adam_w_mode": False}, False: {}})
    """Retired in April 2021: use `optimizer: {params: {adam_w_mode: false}}`, which adds weight decay to the gradient
    instead of subtracting it from the weights."""
