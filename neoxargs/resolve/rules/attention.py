"""Attention: which settings the block-sparse layers have, and which of them do not go together."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from neoxargs.problems import Problem, did_you_mean
from neoxargs.registry import REGISTRY
from neoxargs.resolve.rules.divisibility import multiple
from neoxargs.resolve.rules.model import MODES
from neoxargs.resolve.rules.rule import DERIVATIONS, Contradiction, Refusal, Rule, check
from neoxargs.resolve.values.coerce import Mismatch, conform

Settings = Mapping[str, Any] | None
SECTION = "sparse_attention"
SPARSE = (*list(MODES.values())[1:], "local")
#: What describes a pattern, in the section `sparse_attention` and in `sparsity_config` alike.
SETTINGS = tuple(
    name.removeprefix(f"{SECTION}.")
    for name in REGISTRY.parameters
    if name.startswith(f"{SECTION}.") and not name.endswith(".mode")
)


def sparsity_config(given: Settings, written: Collection[str], *section: Any) -> dict[str, Any] | None:
    """what the section sparse_attention says of the pattern; sparsity_config comes first"""
    found = {key: value for key, value in zip(SETTINGS, section, strict=True) if f"{SECTION}.{key}" in written}
    for key, value in (given or {}).items():
        chosen = _setting(key, value)
        if key in found and found[key] != chosen:
            raise Contradiction(
                f"{SECTION}.{key} ({found[key]}) is not sparsity_config.{key} ({chosen})", "keep one of them"
            )
        found[key] = chosen
    return found if found or given is not None else None


DERIVATIONS.append(
    Rule(
        sparsity_config,
        ("sparsity_config",),
        ("sparsity_config", "written", *(f"{SECTION}.{key}" for key in SETTINGS)),
    )
)


def _setting(key: str, value: Any) -> Any:
    """A value of `sparsity_config`, checked by what the section says of its name."""
    if key not in SETTINGS:
        hint = did_you_mean(key, SETTINGS) or f"a pattern has {', '.join(SETTINGS)}"
        raise Contradiction(f"sparsity_config has no {key}", hint)
    try:
        return conform(value, REGISTRY.parameters[f"{SECTION}.{key}"].type)
    except Mismatch as mismatch:
        raise Contradiction(mismatch.sentence(f"sparsity_config.{key}")) from None


@check
def blocks_divide_the_sequence(seq_length: int, sparsity_config: Settings, attention_config: Sequence[str]) -> Refusal:
    """Block-sparse layers divide a sequence into whole blocks."""
    if not set(attention_config) & set(SPARSE):
        return None
    return multiple(
        "seq_length", seq_length, "the block size of sparse layers", (sparsity_config or {}).get("block", 16)
    )


@check
def summaries_fit_their_window(sparsity_config: Settings, attention_config: Sequence[str]) -> Refusal:
    """`sparse_fixed`: the global blocks of a window, in all their variants, lie inside of it."""
    if "sparse_fixed" not in attention_config:
        return None
    settings = sparsity_config or {}
    window, summary = settings.get("num_local_blocks", 4), settings.get("num_global_blocks", 1)
    variants = settings.get("num_different_global_patterns", 1)
    if summary == 0 or window % summary:
        return multiple("num_local_blocks", window, "num_global_blocks", summary) if summary else None
    if variants > window // summary:
        what = f"num_different_global_patterns ({variants}) is more than a window of {window} blocks has room for"
        return what, f"at most num_local_blocks / num_global_blocks: {window // summary}"
    if variants > 1 and not settings.get("different_layout_per_head", False):
        what = f"num_different_global_patterns ({variants}) needs different_layout_per_head"
        return what, "write different_layout_per_head: true"
    return None


@check
def ranges_of_global_blocks_have_ends(sparsity_config: Settings) -> Refusal:
    """`global_block_end_indices` ends each of `global_block_indices`, after its beginning."""
    settings = sparsity_config or {}
    firsts, ends = settings.get("global_block_indices", [0]), settings.get("global_block_end_indices")
    if ends is None or (len(firsts) == len(ends) and all(map(int.__lt__, firsts, ends))):
        return None
    what = f"global_block_end_indices ({ends}) must have an end for each of global_block_indices ({firsts})"
    return what, "an end is the block after the last one, so it is larger than its beginning"


@check
def global_rows_look_both_ways(sparsity_config: Settings, attention_config: Sequence[str]) -> Refusal:
    """DeepSpeed lays `horizontal_global_attention` out for bidirectional patterns only."""
    settings = sparsity_config or {}
    if not {"sparse_fixed", "sparse_variable"} & set(attention_config):
        return None
    if not settings.get("horizontal_global_attention") or settings.get("attention") == "bidirectional":
        return None
    what = "horizontal_global_attention needs the pattern of attention: bidirectional"
    return what, "write it beside; what follows a token stays hidden from it all the same"


@check
def the_section_names_the_pattern(
    attention_config: Sequence[str], sparse_attention__mode: str, written: Collection[str], sections: Collection[str]
) -> Refusal | Problem:
    """`sparse_attention.mode` is the kind of the layers that are sparse, of which there are some."""
    if SECTION not in sections:
        return None
    kinds = [kind for kind in attention_config if kind in SPARSE]
    named = MODES[sparse_attention__mode]
    if f"{SECTION}.mode" in written and kinds and kinds[0] != named:
        what = f"{SECTION}.mode ({sparse_attention__mode}) and attention_config ({kinds[0]}) name different patterns"
        return what, f"write {named} in attention_config, or leave mode out"
    if not kinds and named != "global":
        what = f"{SECTION} has no effect: all layers see everything before them"
        return Problem(what, hint="write sparsity: all, or attention_config", severity="warning")
    return None


@check
def buckets_reach_their_distance(
    pos_emb: str, rpe_num_buckets: int, rpe_max_distance: int, rpe_causal: bool, written: Collection[str]
) -> Refusal:
    """`pos_emb: rpe`: half of the buckets that serve the past are one distance each; the rest lie beyond."""
    causal = rpe_causal or "rpe_causal" not in written
    past = rpe_num_buckets if causal else rpe_num_buckets // 2
    if pos_emb != "rpe":
        return None
    if past < 2:
        least = 2 if causal else 4
        return f"rpe_num_buckets ({rpe_num_buckets}) is too few", f"write at least {least}"
    if rpe_max_distance <= past // 2:
        what = f"rpe_max_distance ({rpe_max_distance}) is no further than the distances with a bucket of their own"
        return what, f"write more than {past // 2}"
    return None


@check
def one_bias_is_not_partitioned(
    pos_emb: str,
    zero_optimization__stage: object,
    checkpoint_activations: bool,
    partition_activations: bool,
    model_parallel_size: int,
) -> Refusal:
    """What tensor parallel ranks divide must be the same on all of them; the bias is of each rank's own heads."""
    shared = checkpoint_activations and partition_activations and model_parallel_size > 1
    if not (pos_emb == "rpe" and shared and zero_optimization__stage in (2, 3)):
        return None
    what = f"pos_emb (rpe) excludes partition_activations with zero_optimization.stage {zero_optimization__stage}"
    return what, "write partition_activations: false, or a lower stage"
