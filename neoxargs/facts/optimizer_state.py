"""Optimizer state per parameter, computed without building the optimizer.

A test compares the counts with the optimizers that `train/optim` builds.
"""

from __future__ import annotations

from neoxargs.config.config import Config

#: fp32 elements per parameter, without optional momentum; 2, as for Adam, if not listed. The state per row and column
#: of adafactor and sm3 is negligible and counts as 0.
MOMENTS = {
    "adafactor": 0, "adagrad": 1, "asgd": 1, "lion": 1, "madgrad_wd": 3, "muon": 1, "musgd": 0, "rmsprop": 1, "sgd": 0,
    "sm3": 0,
}  # fmt: skip
#: Optimizers with one more element if `momentum` is not 0.
OPTIONAL_MOMENTUM = ("sgd", "musgd", "rmsprop", "sm3")
#: Optimizers with one more element with `amsgrad`.
AMSGRAD = ("adam", "adamw", "cpu_torch_adam", "muadam", "muadamw")
#: Optimizer types with the same state as Adam, which can load each other's checkpoints.
ADAMS = ("adam", "adamw", "cpu_adam", "cpu_torch_adam")


def moments(config: Config) -> int:
    """Return the fp32 elements of optimizer state per parameter, without the master weight."""
    kind, options = (config.optimizer.type or "adam").lower(), config.optimizer_params
    momentum = kind in OPTIONAL_MOMENTUM and bool(options.momentum)
    return MOMENTS.get(kind, 2) + momentum + (kind in AMSGRAD and options.amsgrad)


def state_type(kind: str) -> str:
    """Return the same name for all optimizer types whose states are interchangeable."""
    return "adam" if kind.lower() in ADAMS else kind.lower()


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
