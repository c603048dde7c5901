"""The optimizer as NeoX and Megatron write it, at top level; DeepSpeed's section is in deepspeed_optimizer.py."""

from __future__ import annotations

from typing import Literal

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Fraction, NonNegative, Positive


class OptimizerOptions(Group, origin="Meg"):
    """Which optimizer, and its numbers."""

    optimizer_type: Literal["adam", "onebitadam", "cpu_adam", "cpu_torch_adam", "sm3", "madgrad_wd", "sgd", "lion"] = (
        param(derived=True, origin="NeoX", megatron="optimizer")
    )
    lr: NonNegative = param(derived=True, megatron="lr")
    adam_beta1: Fraction = param(0.9, megatron="adam-beta1")
    adam_beta2: Fraction = param(0.999, megatron="adam-beta2")
    adam_eps: Positive = param(1e-8, megatron="adam-eps")
    clip_grad: NonNegative | None = param(None, megatron="clip-grad")
    use_bnb_optimizer: bool = param(False, origin="NeoX")
    onebitadam: bool = param(False, origin="NeoX", becomes={True: {"optimizer.type": "OneBitAdam"}, False: {}})
    cpu_optimizer: bool = param(
        False, megatron="optimizer-cpu-offload", becomes={True: {"optimizer.type": "cpu_adam"}, False: {}}
    )
    cpu_torch_adam: bool = param(
        False,
        megatron="use-torch-optimizer-for-cpu-offload",
        becomes={True: {"optimizer.type": "cpu_torch_adam"}, False: {}},
    )
    sm3: bool = param(False, origin="NeoX", becomes={True: {"optimizer.type": "sm3"}, False: {}})
