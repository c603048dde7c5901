"""Maximal update parametrisation, muP (Yang et al. 2022, arXiv:2203.03466).

With muP, hyperparameters tuned on a narrow base model also suit a wider one. Each weight's shape is compared with its
shape in the base model. For a matrix that has grown in both dimensions, by a factor m in its inputs, the standard
deviation of the initial values is divided by sqrt(m) and Adam's learning rate by m (table 8 of the paper, the variant
with a multiplier on the output layer). scales.py has the factors of the forward pass: the output layer's input is
divided by the growth of the hidden size, and attention scores by the head dimension instead of its square root.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from neoxargs.config.config import Config
from neoxargs.files.base_shapes import read_base_shapes
from neoxargs.train.parallel.layers import unsharded_shape
from neoxargs.train.parallel.widths import Widths


def widths(config: Config) -> Widths | None:
    """Read `base_shapes_file`; None without `use_mup`.

    Raises Problems if the file cannot be read or does not hold shapes.
    """
    if not config.mup.use_mup:
        return None
    return Widths(read_base_shapes(str(config.mup.base_shapes_file)), config.mup.mup_init_scale)


def divide_groups(
    groups: list[dict[str, Any]], names: Mapping[str, nn.Parameter], widths: Widths, normalized: bool
) -> Any:
    """Split each parameter group into groups with the same learning rate divisor, `width_mult`.

    `Schedule` divides the learning rate by `width_mult`. muP does not scale the decay per step, learning rate x
    `weight_decay`; `weight_decay` is therefore multiplied by `width_mult`.
    names: name -> weight. normalized: as `normalizes_gradients` returns.
    """
    name_of = {id(weight): name for name, weight in names.items()}
    divided_groups = []
    for group in groups:
        parts: dict[float, list[nn.Parameter]] = {}
        for weight in group["params"]:
            divisor = widths.lr_divisor(name_of[id(weight)], tuple(unsharded_shape(weight)), normalized)
            parts.setdefault(divisor, []).append(weight)
        for divisor, weights in parts.items():
            # The product of rate and decay stays what it was.
            decay = group["weight_decay"] * divisor
            divided_groups.append({**group, "params": weights, "weight_decay": decay, "width_mult": divisor})
    return divided_groups


def normalizes_gradients(config: Config) -> bool:
    """Whether the optimizer normalises gradients, as Adam does and SGD does not."""
    return "sgd" not in (config.optimizer.type or "adam").lower()
