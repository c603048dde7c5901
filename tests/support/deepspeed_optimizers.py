"""The optimizers and schedules that DeepSpeed builds, and the parameters that each type of them reads.

Types of optimizers are in lower case, because DeepSpeed compares them without regard to case.
"""

from __future__ import annotations

import inspect
from contextlib import suppress
from typing import Any

import torch
from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad
from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
from deepspeed.ops.lamb import FusedLamb
from deepspeed.ops.lion import DeepSpeedCPULion, FusedLion
from deepspeed.runtime import lr_schedules

ONEBIT_CLASSES: dict[str, tuple[Any, ...]] = {}
with suppress(ImportError):  # DeepSpeed 0.19.7 has removed them
    from deepspeed.runtime.fp16.onebit.adam import OnebitAdam
    from deepspeed.runtime.fp16.onebit.lamb import OnebitLamb
    from deepspeed.runtime.fp16.onebit.zoadam import ZeroOneAdam

    ONEBIT_CLASSES = {"onebitadam": (OnebitAdam,), "zerooneadam": (ZeroOneAdam,), "onebitlamb": (OnebitLamb,)}

# Types DeepSpeed builds itself, types GPT-NeoX adds, and the optimizers of torch that DeepSpeed finds by name.
ADAM = ("adam", "adamw")
ONEBIT = ("onebitadam", "zerooneadam", "onebitlamb")
MUP = ("muadam", "muadamw", "musgd")
NEOX = ("cpu_adam", "cpu_torch_adam", "sm3", "madgrad_wd")
TORCH = ("sgd", "rmsprop", "radam", "nadam", "adamax", "adadelta", "asgd", "rprop", "adafactor", "sparseadam")
TYPES = (*ADAM, "lamb", *ONEBIT, "lion", "adagrad", "muon", *MUP, *NEOX, *TORCH)

#: What the engine passes itself, or refuses.
GIVEN = {"params", "model_params", "deepspeed", "adamw_mode", "max_grad_norm"}

CLASSES: dict[str, tuple[Any, ...]] = {
    "adam": (FusedAdam, DeepSpeedCPUAdam, torch.optim.Adam),
    "adamw": (FusedAdam, DeepSpeedCPUAdam, torch.optim.AdamW),
    "lamb": (FusedLamb,),
    **ONEBIT_CLASSES,
    "lion": (FusedLion, DeepSpeedCPULion),
    "adagrad": (torch.optim.Adagrad, DeepSpeedCPUAdagrad),
    "cpu_adam": (DeepSpeedCPUAdam,),
    "cpu_torch_adam": (torch.optim.Adam,),
    **{name.lower(): (getattr(torch.optim, name),) for name in dir(torch.optim) if name.lower() in TORCH},
}


def arguments(cls: type) -> dict[str, Any]:
    found = inspect.signature(cls).parameters.items()
    return {name: argument.default for name, argument in found if name not in {*GIVEN, "optimizer"}}


#: What DeepSpeed takes out of the parameters of its Adams before it builds one.
TAKEN = ("torch_adam", "adam_w_mode", "fp32_optimizer_states")
#: What DeepSpeed's engine looks for to build Muon.
MUON = ("lr", "momentum", "weight_decay", "muon_lr", "ns_method", "betas", "eps", "adam_lr")
#: What only the Muon of train.py reads: the arguments of torch.optim.Muon, and two of Megatron-LM's.
OWN_MUON = ("nesterov", "ns_steps", "adjust_lr_fn", "extra_scale_factor", "split_qkv")
#: What a type takes in a form that the parameter of that name does not have.
OTHERWISE = {("adafactor", "eps")}  # a pair
#: The parameters of types whose classes are not installed.
WRITTEN_OUT = {
    "sm3": ("lr", "momentum", "beta", "eps"),
    "madgrad_wd": ("lr", "momentum", "weight_decay", "eps"),
    "muadam": ("lr", "betas", "eps", "weight_decay", "decoupled_wd"),
    "muadamw": ("lr", "betas", "eps", "weight_decay", "decoupled_wd"),
    "musgd": ("lr", "momentum", "dampening", "weight_decay", "nesterov", "decoupled_wd"),
}


def of_optimizers() -> dict[str, dict[str, list[Any]]]:
    """Return type -> key that it reads -> the defaults of its classes."""
    found: dict[str, dict[str, list[Any]]] = {}
    for kind in TYPES:
        others = (*MUON, *OWN_MUON) if kind == "muon" else WRITTEN_OUT.get(kind, ())
        keys: dict[str, list[Any]] = {key: [] for key in (*others, *(TAKEN if kind in (*ADAM, "muon") else ()))}
        for cls in CLASSES.get(kind, ()):
            for key, default in arguments(cls).items():
                if (kind, key) not in OTHERWISE:
                    keys.setdefault(key, []).append(default)
        found[kind] = keys
    return found


def of_schedules() -> dict[str, dict[str, list[Any]]]:
    """Return type -> key that it reads -> its default in a list."""
    classes = {name: getattr(lr_schedules, name) for name in lr_schedules.VALID_LR_SCHEDULES}
    return {name.lower(): {key: [default] for key, default in arguments(cls).items()} for name, cls in classes.items()}
