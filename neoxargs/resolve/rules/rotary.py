"""Scaling of rotary positions: the settings that each kind needs."""

from __future__ import annotations

from collections.abc import Container, Sequence

from neoxargs.resolve.rules.rule import Findings, check, refuse, warn

#: Kinds that read rope_scaling.factor and have no default for it.
NEED_FACTOR = ("linear", "ntk", "dynamic", "yarn", "llama3")
#: Kinds that read rope_scaling.original_max_position_embeddings.
READ_ORIGINAL = ("dynamic", "yarn", "llama3", "longrope")


@check
def rope_scaling_needs_factor(rope_scaling__rope_type: str, rope_scaling__factor: float | None) -> Findings:
    """The factor says how many times longer the context becomes. Without it, the angles of rotary positions cannot be
    computed.

        pos_emb: rotary
        rope_scaling: {rope_type: yarn}
    """
    if rope_scaling__rope_type in NEED_FACTOR and rope_scaling__factor is None:
        what = f"rope_scaling.rope_type ({rope_scaling__rope_type}) needs rope_scaling.factor"
        advice = "set factor in the rope_scaling section, for example factor: 8"
        yield refuse(what, advice, about=["rope_scaling.rope_type"])


@check
def rope_scaling_factor_at_least_one(
    pos_emb: str, rope_scaling__rope_type: str, rope_scaling__factor: float | None
) -> Findings:
    """The factor says how many times longer the context becomes. Below 1, frequencies rise instead of falling or, with
    `dynamic`, fall by less than the text is longer: positions come farther apart than those that the model knows.

        pos_emb: rotary
        rope_scaling: {rope_type: dynamic, factor: 0.5}
    """
    factor, is_scaled = rope_scaling__factor, pos_emb == "rotary" and rope_scaling__rope_type != "default"
    if is_scaled and factor is not None and factor < 1:
        what = f"rope_scaling.factor ({factor:g}) is less than 1, which makes the context shorter"
        advice = f"set rope_scaling.factor to how many times longer it becomes, for example {1 / factor:g}"
        yield warn(what, advice, about=["rope_scaling.factor"])


@check
def rope_scaling_lengthens_the_context(
    pos_emb: str,
    max_position_embeddings: int,
    rope_scaling__rope_type: str,
    rope_scaling__original_max_position_embeddings: int | None,
    written: Container[str],
) -> Findings:
    """original_max_position_embeddings is the context of the training before, which scaling extends, to
    max_position_embeddings. If it is the greater one, the two may be swapped: what begins or blends at the original
    context does so at a length that the model is not used for.

        pos_emb: rotary
        max_position_embeddings: 64
        rope_scaling: {rope_type: dynamic, factor: 2, original_max_position_embeddings: 128}
    """
    longest, original = "max_position_embeddings", rope_scaling__original_max_position_embeddings or 0
    reads_original = pos_emb == "rotary" and rope_scaling__rope_type in READ_ORIGINAL
    # If it is not written, it is the length of these samples, which may be short ones.
    if reads_original and longest in written and original > max_position_embeddings:
        name = "rope_scaling.original_max_position_embeddings"
        what = f"{name} ({original}) is greater than {longest} ({max_position_embeddings}), the context after scaling"
        yield warn(what, "set them to the contexts before and after scaling", about=[name, longest])


@check
def rotary_positions_reach_seq_length(
    pos_emb: str,
    seq_length: int,
    max_position_embeddings: int,
    rope_scaling__rope_type: str,
    rope_scaling__factor: float | None,
    rope_scaling__original_max_position_embeddings: int | None,
) -> Findings:
    """A model has learned the angles between positions that are at most as far apart as its longest text. Farther ones
    are new to it, and the loss of such tokens is high until it has learned them, unless the scaling covers them.

        pos_emb: rotary
        seq_length: 64
        max_position_embeddings: 64
        rope_scaling: {rope_type: yarn, factor: 2, original_max_position_embeddings: 16}
    """
    kind, longest = rope_scaling__rope_type, "max_position_embeddings"
    if pos_emb != "rotary" or kind == "dynamic":
        return
    original = rope_scaling__original_max_position_embeddings if kind in ("yarn", "llama3") else None
    factor = rope_scaling__factor if kind in NEED_FACTOR and rope_scaling__factor else 1.0
    name = "rope_scaling.original_max_position_embeddings" if original else longest
    context = original or max_position_embeddings
    # Llama 3.1's context grew sixteenfold, to 131,072 tokens, with a factor of 8.
    reach = int(max(context * factor, max_position_embeddings if kind == "llama3" else 0))
    if seq_length > reach:
        what, times = f"seq_length ({seq_length}) is greater than {name} ({context})", -(-seq_length // context)
        about, advice = ["seq_length", name], f"set {longest} to {seq_length}"
        if kind in NEED_FACTOR:
            what += f" times rope_scaling.factor ({factor:g})"
            about, advice = [*about, "rope_scaling.factor"], f"set rope_scaling.factor to at least {times}"
        elif kind == "default":
            scaling = f"{{rope_type: yarn, factor: {times}, original_max_position_embeddings: {context}}}"
            without = f"if the model is to learn longer texts without it, {advice}"
            advice = f"set rope_scaling, for example {scaling}; or, {without}"
        yield warn(what, f"{advice}; or set seq_length to {reach}", about=about)


@check
def llama3_frequency_range(
    rope_scaling__rope_type: str, rope_scaling__low_freq_factor: float, rope_scaling__high_freq_factor: float
) -> Findings:
    """Llama 3 keeps high frequencies, divides low frequencies by the factor, and blends the two in the range between
    low_freq_factor and high_freq_factor. If the range is empty, the blend divides by 0 or runs backwards.

        pos_emb: rotary
        rope_scaling: {rope_type: llama3, factor: 8, low_freq_factor: 4}
    """
    bounds = {"low_freq_factor": rope_scaling__low_freq_factor, "high_freq_factor": rope_scaling__high_freq_factor}
    if rope_scaling__rope_type == "llama3":
        yield from _empty_range(bounds, "for example, set low_freq_factor: 1 and high_freq_factor: 4, as in Llama 3")


@check
def yarn_rotation_range(
    rope_scaling__rope_type: str, rope_scaling__beta_fast: float, rope_scaling__beta_slow: float
) -> Findings:
    """YaRN keeps frequencies with more rotations than beta_fast within the original context, divides those with fewer
    than beta_slow by the factor, and blends the two between them. Swapped, it scales the frequencies that it should
    keep.

        pos_emb: rotary
        rope_scaling: {rope_type: yarn, factor: 8, beta_fast: 1, beta_slow: 32}
    """
    bounds = {"beta_slow": rope_scaling__beta_slow, "beta_fast": rope_scaling__beta_fast}
    if rope_scaling__rope_type == "yarn":
        yield from _empty_range(bounds, "for example, set beta_slow: 1 and beta_fast: 32, as in YaRN's paper")


def _empty_range(bounds: dict[str, float], advice: str) -> Findings:
    """Refuse a lower bound that is not less than the upper one. bounds: both, by their names in rope_scaling."""
    (low, lower), (high, upper) = bounds.items()
    if lower >= upper:
        what = f"rope_scaling.{low} ({lower:g}) must be less than rope_scaling.{high} ({upper:g})"
        yield refuse(what, advice, about=[f"rope_scaling.{name}" for name in bounds])


@check
def longrope_factors_cover_every_frequency(
    rope_scaling__rope_type: str,
    rope_scaling__short_factor: Sequence[float] | None,
    rope_scaling__long_factor: Sequence[float] | None,
    hidden_size: int,
    num_attention_heads: int,
    head_dim: int | None,
    rotary_pct: float,
) -> Findings:
    """LongRoPE divides each frequency by a factor of its own, and a head has one frequency for every two rotated
    dimensions. With a different number of factors, the angles cannot be computed.

        pos_emb: rotary
        rope_scaling: {rope_type: longrope, short_factor: [1, 1]}
    """
    count = int((head_dim or hidden_size // num_attention_heads) * rotary_pct) // 2
    given = {"short_factor": rope_scaling__short_factor, "long_factor": rope_scaling__long_factor}
    wrong = [name for name, factors in given.items() if factors is None or len(factors) != count]
    if rope_scaling__rope_type == "longrope" and wrong:
        name, factors = f"rope_scaling.{wrong[0]}", given[wrong[0]]
        what = f"rope_scaling.rope_type (longrope) needs {name}"
        if factors is not None:
            what = (
                f"the length of {name} ({len(factors)}) must equal the number of rotary frequencies per head ({count})"
            )
        advice = f"set {name} to a list of length {count}, with one number for each frequency"
        yield refuse(what, advice, about=[name, "rope_scaling.rope_type"])
