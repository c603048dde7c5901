"""How many numbers an optimizer keeps for each parameter, without building it.

A test compares the counts with the optimizers that `train/optim` builds.
"""

from __future__ import annotations

from neoxargs.resolve.config import Config

#: Numbers in fp32 for each parameter, without momentum where that is optional; two (Adam's) where not listed. What
#: is kept for each row and column (adafactor, sm3) is nothing beside that.
MOMENTS = {
    "adafactor": 0, "adagrad": 1, "asgd": 1, "lion": 1, "madgrad_wd": 3, "muon": 1, "musgd": 0, "rmsprop": 1, "sgd": 0,
    "sm3": 0,
}  # fmt: skip
#: Those that keep one more where `momentum` is not 0.
OPTIONAL_MOMENTUM = ("sgd", "musgd", "rmsprop", "sm3")
#: Those that keep one more with `amsgrad`.
AMSGRAD = ("adam", "adamw", "cpu_torch_adam", "muadam", "muadamw")


def moments(config: Config) -> int:
    """Numbers in fp32 that the optimizer keeps for each parameter, beside the weight itself."""
    kind, options = (config.optimizer.type or "adam").lower(), config.optimizer_params
    momentum = kind in OPTIONAL_MOMENTUM and bool(options.momentum)
    return MOMENTS.get(kind, 2) + momentum + (kind in AMSGRAD and options.amsgrad)
