"""Maximal update parametrisation (Yang et al. 2022, arXiv:2203.03466): what suits a narrow model suits a wide one.

Every weight is compared with the one of the base model that the hyperparameters were tuned on. Of a matrix whose both
dimensions have grown, initial deviation and step follow the growth m of its inputs (table 8 of the paper, with the
output layer as a multiplier): deviation / sqrt(m), Adam's step / m. The output layer divides by the growth of the
hidden size, and attention by the width of a head instead of its root.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from torch import Tensor, nn

from neoxargs.problems import Problem, Problems
from neoxargs.resolve.config import Config
from neoxargs.train.model.widths import SAVE, Widths
from neoxargs.train.parallel.make import Make

#: Its rows stay, its columns are the hidden size.
EMBEDDING = "embedding.word_embeddings.weight"


def widths(config: Config) -> Widths | None:
    """With `use_mup`, what `base_shapes_file` says. Raises Problems."""
    if not config.mup.use_mup:
        return None
    file = config.mup.base_shapes_file
    try:
        base = yaml.safe_load(Path(str(file)).read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        what = f"base_shapes_file ({file}) cannot be read: {error}"
        raise Problems(Problem(what, hint=SAVE, id="base-shapes-unreadable", about=("base_shapes_file",))) from None
    if not isinstance(base, dict) or not all(isinstance(sizes, list) for sizes in base.values()):
        what = f"base_shapes_file ({file}) is not a mapping of weight names to lists of sizes"
        raise Problems(Problem(what, hint=SAVE, id="base-shapes-malformed", about=("base_shapes_file",)))
    return Widths(base, config.mup.mup_init_scale)


def groups(found: list[dict[str, Any]], names: Mapping[str, nn.Parameter], widths: Widths, normalised: bool) -> Any:
    """Parameter groups, each divided into those of equal steps; `Schedule` divides its rate by their `width_mult`.

    The decay of a step is the rate times `weight_decay`: it stays as it is.
    """
    name_of = {id(weight): name for name, weight in names.items()}
    divided = []
    for group in found:
        parts: dict[float, list[nn.Parameter]] = {}
        for weight in group["params"]:
            step = widths.divisor(name_of[id(weight)], _unsharded_shape(weight), normalised)
            parts.setdefault(step, []).append(weight)
        for step, weights in parts.items():
            decay = group["weight_decay"] * step
            divided.append({**group, "params": weights, "weight_decay": decay, "width_mult": step})
    return divided


def normalises(config: Config) -> bool:
    """Is the optimizer one that divides gradients by their size?"""
    return "sgd" not in (config.optimizer.type or "adam").lower()


def output_scale(config: Config, make: Make) -> float:
    """Factor on what the output layer reads."""
    if not config.mup.use_mup:
        return 1.0
    growth = make.widths.growth(EMBEDDING, (1, config.shape.hidden_size)) if make.widths else []
    return 1 / (config.mup.mup_output_temp * (growth[-1] if growth else 1.0))


def attention_scale(config: Config) -> float:
    """Factor on queries, beside the one over the root of a head's width that every model has."""
    if not config.mup.use_mup:
        return 1.0
    head = config.shape.hidden_size // config.shape.num_attention_heads
    return float(head**-0.5 / config.mup.mup_attn_temp)


def multipliers(config: Config) -> tuple[float, float]:
    """Factors on the embedding as a whole, and on what tells positions."""
    options = config.mup
    return (options.mup_embedding_mult, options.mup_rp_embedding_mult) if options.use_mup else (1.0, 1.0)


def times(x: Tensor, factor: float) -> Tensor:
    """x, multiplied only where there is something to multiply by."""
    return x if factor == 1 else x * factor


def _unsharded_shape(weight: Any) -> tuple[int, ...]:
    """The shape over all ranks."""
    shape = list(getattr(weight, "ds_shape", weight.shape))
    if hasattr(weight, "cut"):
        shape[weight.cut.dimension] *= weight.cut.size
    return tuple(shape)
