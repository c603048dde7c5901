"""Constant factors in the forward pass: muP's (mup.py) and those of families, on embeddings, queries and the output."""

from __future__ import annotations

from torch import Tensor

from neoxargs.config.config import Config
from neoxargs.facts.attention import head_dim
from neoxargs.train.parallel.widths import Widths

#: The weight that gives the growth of the hidden size: its rows do not grow, its columns are the hidden size.
EMBEDDING = "embedding.word_embeddings.weight"


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
