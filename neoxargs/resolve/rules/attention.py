"""Attention: the settings of block-sparse layers, and which of them cannot be combined."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import date
from typing import Any

from neoxargs.base.problems import did_you_mean
from neoxargs.registry import REGISTRY
from neoxargs.resolve.rules.model import KIND_OF_MODE
from neoxargs.resolve.rules.rule import DERIVATIONS, Contradiction, Findings, Rule, check, derive, refuse, warn
from neoxargs.resolve.rules.shared_findings import multiple_of
from neoxargs.resolve.values.coerce import Mismatch, coerce

Settings = Mapping[str, Any] | None
SECTION = "sparse_attention"
#: What problems of the pattern are about; sparsity_config is derived from the `sparse_attention` section.
ABOUT_PATTERN = ("sparsity_config",)
#: Without `dense`, the first mode, which selects full attention.
SPARSE_KINDS = (*list(KIND_OF_MODE.values())[1:], "local")
#: The day from which GPT-NeoX divides all buckets of `pos_emb: rpe` among past tokens.
ALWAYS_CAUSAL = date(2021, 3, 4)
#: The keys that describe a pattern, both in the `sparse_attention` section and in `sparsity_config`.
PATTERN_KEYS = tuple(
    name.removeprefix(f"{SECTION}.")
    for name in REGISTRY.parameters
    if name.startswith(f"{SECTION}.") and not name.endswith(".mode")
)


def sparsity_config_fits_sparse_attention(
    given: Settings, written: Collection[str], *section: Any
) -> dict[str, Any] | None:
    """the settings of sparsity_config and of the sparse_attention section together

    sparsity_config and sparse_attention both describe the pattern of the sparse layers. If a setting had a different
    value in each, one of the values would be ignored. An unknown setting would also be ignored. The run would then not
    train with the pattern that the file describes.

        sparsity: all
        sparsity_config: {block: 8}
        sparse_attention: {block: 16}
    """
    pattern = {key: value for key, value in zip(PATTERN_KEYS, section, strict=True) if f"{SECTION}.{key}" in written}
    for key, value in (given or {}).items():
        checked = _checked_setting(key, value)
        if key in pattern and pattern[key] != checked:
            raise Contradiction(
                f"{SECTION}.{key} ({pattern[key]}) and sparsity_config.{key} ({checked}) must be equal",
                "remove one of them",
                about=[f"{SECTION}.{key}", "sparsity_config"],
            )
        pattern[key] = checked
    return pattern if pattern or given is not None else None


DERIVATIONS.append(
    Rule(
        sparsity_config_fits_sparse_attention,
        ("sparsity_config",),
        ("sparsity_config", "written", *(f"{SECTION}.{key}" for key in PATTERN_KEYS)),
    )
)


def _checked_setting(key: str, value: Any) -> Any:
    """Return a value of `sparsity_config`, checked against the type of the section's parameter of the same name."""
    if key not in PATTERN_KEYS:
        advice = did_you_mean(key, PATTERN_KEYS) or f"sparsity_config accepts {', '.join(PATTERN_KEYS)}"
        raise Contradiction(f"sparsity_config has no setting {key}", advice, about=ABOUT_PATTERN)
    try:
        return coerce(value, REGISTRY.parameters[f"{SECTION}.{key}"].type)
    except Mismatch as mismatch:
        raise Contradiction(mismatch.sentence(f"sparsity_config.{key}"), about=ABOUT_PATTERN) from None


@check
def sparse_blocks_divide_seq_length(
    seq_length: int, sparsity_config: Settings, attention_config: Sequence[str], written: Collection[str]
) -> Findings:
    """Block-sparse attention computes complete blocks of the score matrix. If the last block would exceed the sequence,
    the layout of the pattern cannot be built, and every rank stops in its first forward pass.

        sparsity: all
        seq_length: 24
    """
    if any(_sparse_layers(attention_config)):
        # DeepSpeed's default.
        block = (sparsity_config or {}).get("block", 16)
        section = "sparsity_config" if "sparsity_config" in written else SECTION
        yield from multiple_of("seq_length", seq_length, f"{section}.block", block, about=["seq_length"])


@check
def sparse_fixed_global_blocks_fit_window(sparsity_config: Settings, attention_config: Sequence[str]) -> Findings:
    """In `sparse_fixed` layers, a window has num_local_blocks blocks. The whole sequence attends to num_global_blocks
    of them, which have a different position in each of num_different_global_patterns patterns. If these blocks do not
    fit in the window, the layout of the pattern cannot be built, and every rank stops when it builds the model.

        attention_config: [[["sparse_fixed"], "all"]]
        sparsity_config: {num_local_blocks: 5, num_global_blocks: 2}
    """
    settings = sparsity_config or {}
    # DeepSpeed's defaults.
    local, global_blocks = settings.get("num_local_blocks", 4), settings.get("num_global_blocks", 1)
    patterns = settings.get("num_different_global_patterns", 1)
    if "sparse_fixed" not in attention_config or global_blocks == 0:
        return
    if local % global_blocks:
        yield from multiple_of("num_local_blocks", local, "num_global_blocks", global_blocks, ABOUT_PATTERN)
    elif patterns > (most := local // global_blocks):
        what = f"num_different_global_patterns ({patterns}) must be at most num_local_blocks ({local})"
        advice = f"set num_different_global_patterns to {most} or less"
        yield refuse(f"{what} / num_global_blocks ({global_blocks}) = {most}", advice, ABOUT_PATTERN)
    elif patterns > 1 and not settings.get("different_layout_per_head", False):
        what = f"num_different_global_patterns ({patterns}) needs different_layout_per_head"
        yield refuse(what, "set different_layout_per_head to true", ABOUT_PATTERN)


@check
def global_block_ranges_have_ends(sparsity_config: Settings) -> Findings:
    """Each entry of global_block_indices is the start of a range of blocks, and the corresponding entry of
    global_block_end_indices is the end of this range. A range without an end, or with an end before its start, stops
    every rank when it builds the layout of the pattern.

        sparsity: all
        sparsity_config: {global_block_indices: [1, 2], global_block_end_indices: [2]}
    """
    settings = sparsity_config or {}
    starts, ends = settings.get("global_block_indices", [0]), settings.get("global_block_end_indices")
    if ends is not None and (len(starts) != len(ends) or not all(map(int.__lt__, starts, ends))):
        what = f"global_block_end_indices ({ends}) must have as many entries as global_block_indices ({starts}),"
        what += " and each end must be greater than its start"
        yield refuse(what, "write one end for each start; ends are exclusive, so blocks 1 to 3 have start 1 and end 4")


@check
def horizontal_global_attention_needs_bidirectional(
    sparsity_config: Settings, attention_config: Sequence[str]
) -> Findings:
    """DeepSpeed builds horizontal_global_attention only for bidirectional patterns and raises ValueError on every rank
    for unidirectional ones, which are the default. The causal mask is applied to both.

        sparsity: all
        sparsity_config: {horizontal_global_attention: true}
    """
    settings = sparsity_config or {}
    asked = settings.get("horizontal_global_attention") and {"sparse_fixed", "sparse_variable"} & set(attention_config)
    if asked and settings.get("attention") != "bidirectional":
        what = "horizontal_global_attention (true) needs attention: bidirectional"
        advice = "set attention: bidirectional in the same section; the causal mask is applied regardless"
        yield refuse(what, advice, ABOUT_PATTERN)


@check
def sparse_attention_mode_matches_layers(
    attention_config: Sequence[str], sparse_attention__mode: str, written: Collection[str], sections: Collection[str]
) -> Findings:
    """sparse_attention.mode names the pattern of all sparse layers, attention_config the pattern of each layer. If they
    differ, DeepSpeed's section and GPT-NeoX's list describe two models, and only one of the two would be trained.

        attention_config: [[["local"], "all"]]
        sparse_attention: {mode: bigbird}
    """
    kind, named = next(_sparse_layers(attention_config), None), KIND_OF_MODE[sparse_attention__mode]
    if SECTION in sections and f"{SECTION}.mode" in written and kind not in (None, named):
        what = f"{SECTION}.mode ({sparse_attention__mode}) and attention_config ({kind}) select different patterns"
        yield refuse(what, f"use {named} in attention_config, or remove {SECTION}.mode")


@check
def sparse_attention_has_sparse_layers(
    attention_config: Sequence[str], sparse_attention__mode: str, sections: Collection[str]
) -> Findings:
    """The sparse_attention section only describes a pattern; sparsity or attention_config selects the layers that use
    it. Without a sparse layer, the run computes full attention, at full cost in time and memory.

        sparse_attention: {mode: fixed}
    """
    dense = KIND_OF_MODE[sparse_attention__mode] == "global"
    if SECTION in sections and not any(_sparse_layers(attention_config)) and not dense:
        what = f"{SECTION} has no effect: no layer is sparse"
        yield warn(what, f"remove {SECTION}, or add sparse layers to attention_config", about=[SECTION])


def _sparse_layers(attention_config: Sequence[str]) -> Iterator[str]:
    return (kind for kind in attention_config if kind in SPARSE_KINDS)


@derive
def rpe_causal(pos_emb: str, day: date) -> bool | None:
    """GPT-NeoX has had only causal buckets since March 2021"""
    return True if pos_emb == "rpe" and day >= ALWAYS_CAUSAL else None


@check
def rpe_buckets_reach_max_distance(
    pos_emb: str, rpe_num_buckets: int, rpe_max_distance: int, rpe_causal: bool
) -> Findings:
    """With `pos_emb: rpe`, the first half of the buckets for past tokens hold one distance each, and the ranges of the
    others grow logarithmically up to rpe_max_distance. With too few buckets, or an rpe_max_distance within the first
    half, the logarithm is 0 or undefined: biases become NaN, or are looked up outside the table of biases.

        pos_emb: rpe
        rpe_max_distance: 16
    """
    # The other half of the buckets is for future tokens.
    past = rpe_num_buckets if rpe_causal else rpe_num_buckets // 2
    if pos_emb != "rpe":
        return
    if past < 2:
        what = f"rpe_num_buckets ({rpe_num_buckets}) must be at least {2 if rpe_causal else 4}"
        yield refuse(what, "remove rpe_num_buckets to use the default of 32", about=["rpe_num_buckets"])
    elif rpe_max_distance <= past // 2:
        share = 2 if rpe_causal else 4
        limit = f"rpe_num_buckets ({rpe_num_buckets}) // {share} = {past // 2}"
        what = f"rpe_max_distance ({rpe_max_distance}) must be greater than {limit}"
        advice = f"set rpe_max_distance to {past // 2 + 1} or more"
        if (most := share * rpe_max_distance - 1) >= share:
            advice += f", or rpe_num_buckets to {most} or less"
        yield refuse(what, advice, about=["rpe_max_distance"])


@check
def rpe_excludes_partition_activations_with_zero_2(
    pos_emb: str,
    zero_optimization__stage: object,
    checkpoint_activations: bool | str,
    partition_activations: bool,
    model_parallel_size: int,
) -> Findings:
    """Partitioned activations must be equal on all tensor parallel ranks, because each rank keeps one slice of them.
    Each rank has the relative position bias of its own heads, so the biases differ: after the gather, every rank would
    compute with a mixture of all ranks' biases.

        pos_emb: rpe
        zero_optimization: {stage: 3}
        checkpoint_activations: true
        partition_activations: true
        model_parallel_size: 2
    """
    shared = checkpoint_activations is True and partition_activations and model_parallel_size > 1
    if pos_emb == "rpe" and shared and zero_optimization__stage in (2, 3):
        yield refuse(
            f"pos_emb (rpe) and partition_activations cannot be combined with ZeRO stage {zero_optimization__stage}",
            "set partition_activations to false, or zero_optimization.stage to 0 or 1",
            about=["pos_emb", "zero_optimization.stage", "partition_activations"],
        )


@check
def window_pattern_covers_every_layer(window_attn_skip_freq: int | Sequence[int] | None, num_layers: int) -> Findings:
    """A list in window_attn_skip_freq has one number for each layer. With a different length, a layer would have no
    entry, or an entry would have no layer, and the trained model would not be the one that the list describes.

        sliding_window_width: 8
        window_attn_skip_freq: [1, 0]
    """
    if isinstance(window_attn_skip_freq, Sequence) and len(window_attn_skip_freq) != num_layers:
        count = len(window_attn_skip_freq)
        yield refuse(
            f"the length of window_attn_skip_freq ({count}) must equal num_layers ({num_layers})",
            "write 1 (window) or 0 (no window) for each layer, or a single number N to leave every N-th layer without "
            "a window",
        )


@check
def shared_layers_exclude_window_pattern(
    window_attn_skip_freq: int | Sequence[int] | None, num_unique_layers: int | None, num_layers: int
) -> Findings:
    """Layers that share their weights are one layer that is used several times, with one attention mask. Of the
    layers that share weights, either all or none can have a window.

        num_unique_layers: 2
        sliding_window_width: 8
        window_attn_skip_freq: 4
    """
    if window_attn_skip_freq is not None and num_unique_layers not in (None, num_layers):
        what = "window_attn_skip_freq and num_unique_layers cannot be combined"
        yield refuse(what, "remove one of them", about=["window_attn_skip_freq", "num_unique_layers"])


@check
def attn_logit_softcapping_excludes_flash_layers(
    attn_logit_softcapping: float | None, attention_config: Sequence[str]
) -> Findings:
    """`flash` layers always use torch's fused kernels, which cannot bound the scores. `global` layers use
    flex_attention on a GPU, or store the scores.

        attn_logit_softcapping: 50
        attention_config: [[["flash"], "all"]]
    """
    if attn_logit_softcapping is not None and "flash" in attention_config:
        what = f"attn_logit_softcapping ({attn_logit_softcapping}) cannot be combined with flash layers"
        yield refuse(what, "use global layers in attention_config")
