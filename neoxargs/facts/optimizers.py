"""The optimizers of train.py, and their state per parameter, computed without building them.

A test compares the counts with the optimizers that `train/optim` builds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from neoxargs.base.record import Record
from neoxargs.config.config import Config

if TYPE_CHECKING:
    from neoxargs.config.groups import OptimizerParams


class OptimizerKind(Record):
    """What train.py, checks and plan need to know of an optimizer besides its steps."""

    moments: int = 2
    """fp32 elements of state per parameter. State per row and column is negligible and counts as 0."""
    option: Literal["", "momentum", "amsgrad"] = ""
    """A parameter of the optimizer that adds one element."""
    divides_experts: bool = False
    """Whether the gradients of an expert can be averaged over fewer ranks than those of other weights."""


_ADAM, _SGD = OptimizerKind(2, "amsgrad", True), OptimizerKind(0, "momentum", True)
#: `optimizer.type` -> an optimizer of train.py: its own, those of torch and of DeepSpeed.
OPTIMIZERS: Mapping[str, OptimizerKind] = {
    "Adam": _ADAM,
    "AdamW": _ADAM,
    "cpu_adam": OptimizerKind(divides_experts=True),
    "cpu_torch_adam": _ADAM,
    "SGD": _SGD,
    "Lion": OptimizerKind(1, divides_experts=True),
    "sm3": _SGD,
    "madgrad_wd": OptimizerKind(3, divides_experts=True),
    "Lamb": OptimizerKind(divides_experts=True),
    "Muon": OptimizerKind(1),
    "Adagrad": OptimizerKind(1),
    "RMSprop": OptimizerKind(1, "momentum"),
    **dict.fromkeys(("RAdam", "NAdam", "Adamax", "Adadelta"), OptimizerKind()),
    "ASGD": OptimizerKind(1),
    **dict.fromkeys(("Rprop", "OneBitAdam", "ZeroOneAdam", "OneBitLamb"), OptimizerKind()),
    "MuAdam": _ADAM,
    "MuAdamW": _ADAM,
    "MuSGD": _SGD,
}
#: The same in lower case, and one that only a user's own script may use.
_KINDS = {name.lower(): kind for name, kind in OPTIMIZERS.items()} | {"adafactor": OptimizerKind(0)}
#: Optimizer types with the same state as Adam, which can load each other's checkpoints.
ADAMS = ("adam", "adamw", "cpu_adam", "cpu_torch_adam")


def moments(config: Config) -> int:
    """Return the fp32 elements of optimizer state per parameter, without the master weight."""
    kind = _KINDS.get((config.optimizer.type or "adam").lower(), OptimizerKind())
    return kind.moments + bool(kind.option and getattr(config.optimizer_params, kind.option))


def state_type(kind: str) -> str:
    """Return the same name for all optimizer types whose states are interchangeable."""
    return "adam" if kind.lower() in ADAMS else kind.lower()


def rate_factors(params: OptimizerParams) -> dict[str, float]:
    """Return the factors of the learning rate with Muon: of its matrices (`muon`) and of other weights (`adam`)."""
    lr = params.lr or 0.0
    own = {"muon": params.muon_lr, "adam": params.adam_lr}
    return {name: rate / lr if rate is not None and lr else 1.0 for name, rate in own.items()}


def own_rates(config: Config) -> dict[str, float]:
    """Return the factors of a run whose optimizer has several learning rates; else none."""
    factors = rate_factors(config.optimizer_params) if (config.optimizer.type or "").lower() == "muon" else {}
    return factors if {*factors.values()} - {1.0} else {}


def is_onebit(kind: str) -> bool:
    """Whether the type is one of DeepSpeed's optimizers that compress their communication to one bit."""
    return kind.lower() in ("onebitadam", "zerooneadam", "onebitlamb")


def accumulates_in_fp32(bf16: bool, micro_batches: int, chosen: str | None, offloaded: bool, optimizer: str) -> bool:
    """Whether train.py sums the gradients of micro batches in fp32 although it computes in bf16.

    bf16 has 8 significant bits: of a sum of 256 equal gradients, the last half would be lost.
    micro_batches: number of micro batches in a step. chosen: `data_types.grad_accum_dtype`, which overrides the rule.
    offloaded: whether optimizer state is in host memory, where DeepSpeed adds gradients in the model's precision.
    """
    if not bf16:
        return False
    if chosen is not None:
        return chosen.removeprefix("torch.") in ("fp32", "float32", "float")
    return micro_batches > 1 and not offloaded and not is_onebit(optimizer)  # 1-bit optimizers average momentum
