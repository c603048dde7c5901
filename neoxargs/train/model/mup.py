"""Maximal update parametrisation, muP (Yang et al. 2022, arXiv:2203.03466).

With muP, hyperparameters tuned on a narrow base model also suit a wider one. Each weight's shape is compared with its
shape in the base model. For a matrix that has grown in both dimensions, by a factor m in its inputs, the standard
deviation of the initial values is divided by sqrt(m) and Adam's learning rate by m (table 8 of the paper, the variant
with a multiplier on the output layer). The output layer's input is divided by the growth of the hidden size. Attention
scores are divided by the head dimension instead of its square root.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from neoxargs.config.config import Config
from neoxargs.facts.attention import head_dim
from neoxargs.files.base_shapes import read_base_shapes
from neoxargs.train.parallel.layers import unsharded_shape
from neoxargs.train.parallel.widths import Widths

#: The weight that gives the growth of the hidden size: its rows do not grow, its columns are the hidden size.
EMBEDDING = "embedding.word_embeddings.weight"


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


def output_scale(config: Config, widths: Widths | None) -> float:
    """Return the factor on the output layer's input."""
    if not config.mup.use_mup:
        return 1.0
    # 1 stands for the vocabulary, which does not grow: its size in the base shapes is None and is skipped.
    growth = widths.growth(EMBEDDING, (1, config.shape.hidden_size)) if widths else []
    return 1 / (config.mup.mup_output_temp * (growth[-1] if growth else 1.0))


def attention_scale(config: Config) -> float:
    """Return the factor on queries, in addition to the usual 1 / sqrt(head dimension); it applies `softmax_scale`."""
    width, scale = head_dim(config.shape), config.attention.softmax_scale
    # Attention divides by sqrt(head_dim) anyway, so the factor takes that back.
    factor = 1.0 if scale is None else float(scale * width**0.5)
    return factor * float(width**-0.5 / config.mup.mup_attn_temp) if config.mup.use_mup else factor


def multipliers(config: Config) -> tuple[float, float]:
    """Return the factors on the output of the embedding, and on the embedding of positions."""
    options = config.mup
    return (options.mup_embedding_mult, options.mup_rp_embedding_mult) if options.use_mup else (1.0, 1.0)


def scale_by(x: Tensor, factor: float) -> Tensor:
    """Multiply x by `factor`, without an operation if it is 1."""
    return x if factor == 1 else x * factor
