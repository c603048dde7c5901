"""Scaling of rotary positions to contexts longer than those of the original training."""

from __future__ import annotations

from typing import Literal

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count, Positive


class RopeScaling(Group, origin="NeoX", effect="model", section="rope_scaling"):
    """Changes to the frequencies of `pos_emb: rotary`. The keys are those of Hugging Face's models."""

    rope_type: Literal["default", "linear", "ntk", "dynamic", "yarn", "llama3", "longrope"] = param(
        "default", ours=True
    )
    """How the frequencies change: `default` not at all, `linear` divides positions by `factor`, `ntk` enlarges the
    base, `dynamic` enlarges it further for each longer sequence, `yarn` and `llama3` reduce the low frequencies and
    keep the high ones, `longrope` divides each by its own factor. Where positions begin anew in each document,
    `dynamic` and `longrope` go by the length of the document, otherwise by that of the sequence."""

    factor: Positive | None = param(None, ours=True)
    """How many times longer the context becomes. Required by all but `longrope`, which uses
    `max_position_embeddings` / `original_max_position_embeddings` if it is not set."""

    original_max_position_embeddings: Count | None = param(
        None, ours=True, megatron="yarn-original-max-position-embeddings"
    )
    """Context length of the original training, in tokens, for `dynamic`, `yarn`, `llama3` and `longrope`. Default:
    `max_position_embeddings`."""

    low_freq_factor: Positive = param(1.0, ours=True)
    """With `rope_type: llama3`, frequencies with fewer rotations than this within the original context are divided by
    `factor`."""

    high_freq_factor: Positive = param(4.0, ours=True)
    """With `rope_type: llama3`, frequencies with more rotations than this within the original context are unchanged;
    those between `low_freq_factor` and this number are blended. Must exceed `low_freq_factor`."""

    beta_fast: Positive = param(32.0, ours=True, megatron="yarn-beta-fast")
    """With `rope_type: yarn`, frequencies with more rotations than this within the original context are unchanged."""

    beta_slow: Positive = param(1.0, ours=True, megatron="yarn-beta-slow")
    """With `rope_type: yarn`, frequencies with fewer rotations than this within the original context are divided by
    `factor`; those between this number and `beta_fast` are blended."""

    truncate: bool = param(True, ours=True, megatron="!no-yarn-correction-range-round-to-int")
    """Whether the range of dimensions over which `yarn` blends is rounded outwards to whole dimensions."""

    attention_factor: Positive | None = param(None, ours=True)
    """Factor by which rotated queries and keys are multiplied, which sharpens attention in longer contexts. Default:
    for `yarn` and `longrope`, the function of `factor` from the method's paper; for the others, 1."""

    mscale: Positive | None = param(None, ours=True, megatron="mscale")
    """With `mscale_all_dim`, `yarn` computes `attention_factor` as a ratio of two functions of `factor`, as DeepSeek
    does. This is the coefficient in the numerator."""

    mscale_all_dim: Positive | None = param(None, ours=True, megatron="mscale-all-dim")
    """Coefficient in the denominator of the ratio from which `yarn` computes `attention_factor`: see `mscale`."""

    short_factor: list[Positive] | None = param(None, ours=True)
    """Divisors of the frequencies, one per frequency, that `longrope` uses for a sequence no longer than the original
    context."""

    long_factor: list[Positive] | None = param(None, ours=True)
    """Divisors of the frequencies, one per frequency, that `longrope` uses for a sequence longer than the original
    context."""
