"""Scaling of rotary positions: the settings that each kind needs."""

from __future__ import annotations

from collections.abc import Sequence

from neoxargs.resolve.rules.rule import Finding, check, refuse

#: Kinds that read rope_scaling.factor and have no default for it.
NEED_FACTOR = ("linear", "ntk", "yarn", "llama3")


@check
def rope_scaling_needs_factor(rope_scaling__rope_type: str, rope_scaling__factor: float | None) -> Finding | None:
    """The factor says how many times longer the context becomes. Without it, the angles of rotary positions cannot be
    computed.

        pos_emb: rotary
        rope_scaling: {rope_type: yarn}
    """
    if rope_scaling__rope_type not in NEED_FACTOR or rope_scaling__factor is not None:
        return None
    what = f"rope_scaling.rope_type ({rope_scaling__rope_type}) needs rope_scaling.factor"
    advice = "set factor in the rope_scaling section, for example factor: 8"
    return refuse(what, advice, about=["rope_scaling.rope_type"])


@check
def llama3_frequency_range(
    rope_scaling__rope_type: str, rope_scaling__low_freq_factor: float, rope_scaling__high_freq_factor: float
) -> Finding | None:
    """Llama 3 keeps high frequencies, divides low frequencies by the factor, and blends the two in the range between
    low_freq_factor and high_freq_factor. If the range is empty, the blend divides by 0 or runs backwards.

        pos_emb: rotary
        rope_scaling: {rope_type: llama3, factor: 8, low_freq_factor: 4}
    """
    low, high = rope_scaling__low_freq_factor, rope_scaling__high_freq_factor
    if rope_scaling__rope_type != "llama3" or low < high:
        return None
    what = f"rope_scaling.low_freq_factor ({low:g}) must be less than rope_scaling.high_freq_factor ({high:g})"
    about = ["rope_scaling.low_freq_factor", "rope_scaling.high_freq_factor"]
    return refuse(what, "for example, set low_freq_factor: 1 and high_freq_factor: 4, as in Llama 3", about=about)


@check
def longrope_factors_cover_every_frequency(
    rope_scaling__rope_type: str,
    rope_scaling__short_factor: Sequence[float] | None,
    rope_scaling__long_factor: Sequence[float] | None,
    hidden_size: int,
    num_attention_heads: int,
    head_dim: int | None,
    rotary_pct: float,
) -> Finding | None:
    """LongRoPE divides each frequency by a factor of its own, and a head has one frequency for every two rotated
    dimensions. With a different number of factors, the angles cannot be computed.

        pos_emb: rotary
        rope_scaling: {rope_type: longrope, short_factor: [1, 1]}
    """
    if rope_scaling__rope_type != "longrope":
        return None
    count = int((head_dim or hidden_size // num_attention_heads) * rotary_pct) // 2
    for name, factors in (("short_factor", rope_scaling__short_factor), ("long_factor", rope_scaling__long_factor)):
        what = f"rope_scaling.rope_type (longrope) needs rope_scaling.{name}"
        if factors is not None:
            what = f"the length of rope_scaling.{name} ({len(factors)}) must equal the number of rotary "
            what += f"frequencies per head ({count})"
        if factors is None or len(factors) != count:
            advice = f"set rope_scaling.{name} to a list of length {count}, with one number for each frequency"
            return refuse(what, advice, about=[f"rope_scaling.{name}", "rope_scaling.rope_type"])
    return None
