"""The classes that DeepSpeed builds for each type of optimizer, and the arguments of their constructors."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad
from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
from deepspeed.ops.lamb import FusedLamb
from deepspeed.ops.lion import DeepSpeedCPULion, FusedLion
from deepspeed.runtime.fp16.onebit.adam import OnebitAdam
from deepspeed.runtime.fp16.onebit.lamb import OnebitLamb
from deepspeed.runtime.fp16.onebit.zoadam import ZeroOneAdam

from neoxargs.registry.deepspeed_optimizer import TORCH

#: What the engine passes itself, or refuses.
GIVEN = {"params", "model_params", "deepspeed", "adamw_mode", "max_grad_norm"}

CLASSES: dict[str, tuple[Any, ...]] = {
    "adam": (FusedAdam, DeepSpeedCPUAdam, torch.optim.Adam),
    "adamw": (FusedAdam, DeepSpeedCPUAdam, torch.optim.AdamW),
    "lamb": (FusedLamb,),
    "onebitadam": (OnebitAdam,),
    "zerooneadam": (ZeroOneAdam,),
    "onebitlamb": (OnebitLamb,),
    "lion": (FusedLion, DeepSpeedCPULion),
    "adagrad": (torch.optim.Adagrad, DeepSpeedCPUAdagrad),
    "cpu_adam": (DeepSpeedCPUAdam,),
    "cpu_torch_adam": (torch.optim.Adam,),
    **{name.lower(): (getattr(torch.optim, name),) for name in dir(torch.optim) if name.lower() in TORCH},
}


def arguments(cls: type) -> dict[str, Any]:
    found = inspect.signature(cls).parameters.items()
    return {name: argument.default for name, argument in found if name not in {*GIVEN, "optimizer"}}
