"""Attention: which settings the block-sparse layers have, and which of them do not go together."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from neoxargs.problems import did_you_mean
from neoxargs.registry import REGISTRY
from neoxargs.resolve.rules.model import MODES
from neoxargs.resolve.rules.rule import DERIVATIONS, Contradiction, Finding, Rule, check, refuse, warn
from neoxargs.resolve.rules.shared_findings import multiple
from neoxargs.resolve.values.coerce import Mismatch, conform

Settings = Mapping[str, Any] | None
SECTION = "sparse_attention"
#: Settings of the pattern are about this, also those of the section, from which it is derived.
PATTERN = ("sparsity_config",)
SPARSE = (*list(MODES.values())[1:], "local")
#: What describes a pattern, in the section `sparse_attention` and in `sparsity_config` alike.
SETTINGS = tuple(
    name.removeprefix(f"{SECTION}.")
    for name in REGISTRY.parameters
    if name.startswith(f"{SECTION}.") and not name.endswith(".mode")
)


def sparsity_config_fits_sparse_attention(
    given: Settings, written: Collection[str], *section: Any
) -> dict[str, Any] | None:
    """what the section sparse_attention says of the pattern; sparsity_config comes first

    Both describe the pattern of the sparse layers. A setting that no pattern has would be ignored, and of two values
    for one setting one would be: the run would train with an attention that the file does not describe.

        sparsity: all
        sparsity_config: {block: 8}
        sparse_attention: {block: 16}
    """
    found = {key: value for key, value in zip(SETTINGS, section, strict=True) if f"{SECTION}.{key}" in written}
    for key, value in (given or {}).items():
        chosen = _setting(key, value)
        if key in found and found[key] != chosen:
            raise Contradiction(
                f"{SECTION}.{key} ({found[key]}) is not sparsity_config.{key} ({chosen})",
                "keep one of them",
                about=[f"{SECTION}.{key}", "sparsity_config"],
            )
        found[key] = chosen
    return found if found or given is not None else None


DERIVATIONS.append(
    Rule(
        sparsity_config_fits_sparse_attention,
        ("sparsity_config",),
        ("sparsity_config", "written", *(f"{SECTION}.{key}" for key in SETTINGS)),
    )
)


def _setting(key: str, value: Any) -> Any:
    """A value of `sparsity_config`, checked by what the section says of its name."""
    if key not in SETTINGS:
        advice = did_you_mean(key, SETTINGS) or f"a pattern has {', '.join(SETTINGS)}"
        raise Contradiction(f"sparsity_config has no {key}", advice, about=PATTERN)
    try:
        return conform(value, REGISTRY.parameters[f"{SECTION}.{key}"].type)
    except Mismatch as mismatch:
        raise Contradiction(mismatch.sentence(f"sparsity_config.{key}"), about=PATTERN) from None


@check
def sparse_blocks_divide_seq_length(
    seq_length: int, sparsity_config: Settings, attention_config: Sequence[str]
) -> Finding | None:
    """Block-sparse attention computes whole blocks of the score matrix. With a block cut off at the end of the
    sequence, the layout of the pattern cannot be made, and every rank stops at the first forward pass.

        sparsity: all
        seq_length: 24
    """
    if not set(attention_config) & set(SPARSE):
        return None
    block = (sparsity_config or {}).get("block", 16)
    found = multiple("seq_length", seq_length, "the block size of sparse layers", block)
    return found and replace(found, about=("seq_length",))


@check
def sparse_fixed_global_blocks_fit_window(sparsity_config: Settings, attention_config: Sequence[str]) -> Finding | None:
    """In `sparse_fixed` layers a window of num_local_blocks ends in num_global_blocks that the whole sequence attends
    to, at a different place in each of num_different_global_patterns. Where they do not fit into the window, the
    layout of the pattern cannot be made, and every rank stops when the model is built.

        attention_config: [[["sparse_fixed"], "all"]]
        sparsity_config: {num_local_blocks: 5, num_global_blocks: 2}
    """
    if "sparse_fixed" not in attention_config:
        return None
    settings = sparsity_config or {}
    window, summary = settings.get("num_local_blocks", 4), settings.get("num_global_blocks", 1)
    variants = settings.get("num_different_global_patterns", 1)
    if summary == 0 or window % summary:
        found = multiple("num_local_blocks", window, "num_global_blocks", summary) if summary else None
        return found and replace(found, about=PATTERN)
    if variants > window // summary:
        what = f"num_different_global_patterns ({variants}) is more than a window of {window} blocks has room for"
        return refuse(what, f"at most num_local_blocks / num_global_blocks: {window // summary}", PATTERN)
    if variants > 1 and not settings.get("different_layout_per_head", False):
        what = f"num_different_global_patterns ({variants}) needs different_layout_per_head"
        return refuse(what, "write different_layout_per_head: true", PATTERN)
    return None


@check
def global_block_ranges_have_ends(sparsity_config: Settings) -> Finding | None:
    """global_block_end_indices holds, for each of global_block_indices, the block at which its range ends. A range
    without an end, or with one before its beginning, would stop every rank when the pattern is laid out.

        sparsity: all
        sparsity_config: {global_block_indices: [1, 2], global_block_end_indices: [2]}
    """
    settings = sparsity_config or {}
    firsts, ends = settings.get("global_block_indices", [0]), settings.get("global_block_end_indices")
    if ends is None or (len(firsts) == len(ends) and all(map(int.__lt__, firsts, ends))):
        return None
    what = f"global_block_end_indices ({ends}) must have an end for each of global_block_indices ({firsts})"
    return refuse(what, "an end is the block after the last one, so it is larger than its beginning", PATTERN)


@check
def horizontal_global_attention_needs_bidirectional(
    sparsity_config: Settings, attention_config: Sequence[str]
) -> Finding | None:
    """DeepSpeed lays horizontal_global_attention out only for bidirectional patterns, and raises ValueError
    on every rank for the unidirectional one that is the default. The causal mask is applied in either case.

        sparsity: all
        sparsity_config: {horizontal_global_attention: true}
    """
    settings = sparsity_config or {}
    if not {"sparse_fixed", "sparse_variable"} & set(attention_config):
        return None
    if not settings.get("horizontal_global_attention") or settings.get("attention") == "bidirectional":
        return None
    what = "horizontal_global_attention needs the pattern of attention: bidirectional"
    return refuse(what, "write it beside; what follows a token stays hidden from it all the same", PATTERN)


@check
def sparse_attention_mode_matches_layers(
    attention_config: Sequence[str], sparse_attention__mode: str, written: Collection[str], sections: Collection[str]
) -> Finding | None:
    """sparse_attention.mode names the pattern of the sparse layers, as attention_config does layer by layer. Where
    they differ, DeepSpeed's section and GPT-NeoX's list ask for two models, and one of them would be trained.

        attention_config: [[["local"], "all"]]
        sparse_attention: {mode: bigbird}
    """
    kinds = _sparse_layers(attention_config)
    if SECTION not in sections or f"{SECTION}.mode" not in written or not kinds:
        return None
    named = MODES[sparse_attention__mode]
    if kinds[0] == named:
        return None
    what = f"{SECTION}.mode ({sparse_attention__mode}) and attention_config ({kinds[0]}) name different patterns"
    advice = f"write {named} in attention_config, or leave mode out"
    return refuse(what, advice, about=["attention_config", f"{SECTION}.mode"])


@check
def sparse_attention_has_sparse_layers(
    attention_config: Sequence[str], sparse_attention__mode: str, sections: Collection[str]
) -> Finding | None:
    """The section sparse_attention only describes a pattern; which layers are sparse is said by sparsity or
    attention_config. Without a sparse layer the run computes full attention, at its full cost in time and memory.

        sparse_attention: {mode: fixed}
    """
    if SECTION not in sections or _sparse_layers(attention_config) or MODES[sparse_attention__mode] == "global":
        return None
    what = f"{SECTION} has no effect: all layers see everything before them"
    return warn(what, "write sparsity: all, or attention_config", about=[SECTION])


def _sparse_layers(attention_config: Sequence[str]) -> list[str]:
    return [kind for kind in attention_config if kind in SPARSE]


@check
def rpe_buckets_reach_max_distance(
    pos_emb: str, rpe_num_buckets: int, rpe_max_distance: int, rpe_causal: bool, written: Collection[str]
) -> Finding | None:
    """With `pos_emb: rpe`, half of the buckets for past tokens are one distance each, and the rest grow
    logarithmically up to rpe_max_distance. With too few buckets, or a distance that the first half already reaches,
    that logarithm is 0 or undefined, and biases are NaN or looked up outside of their table.

        pos_emb: rpe
        rpe_max_distance: 16
    """
    causal = rpe_causal or "rpe_causal" not in written
    past = rpe_num_buckets if causal else rpe_num_buckets // 2
    if pos_emb != "rpe":
        return None
    if past < 2:
        least = 2 if causal else 4
        what = f"rpe_num_buckets ({rpe_num_buckets}) is too few"
        return refuse(what, f"write at least {least}", about=["rpe_num_buckets"])
    if rpe_max_distance <= past // 2:
        what = f"rpe_max_distance ({rpe_max_distance}) is no further than the distances with a bucket of their own"
        return refuse(what, f"write more than {past // 2}", about=["rpe_max_distance"])
    return None


@check
def rpe_excludes_partition_activations_with_zero_2(
    pos_emb: str,
    zero_optimization__stage: object,
    checkpoint_activations: bool,
    partition_activations: bool,
    model_parallel_size: int,
) -> Finding | None:
    """Partitioned activations must be the same on all tensor parallel ranks, as each keeps one slice of them. The
    relative position bias is that of a rank's own heads: gathered again it would be a mixture of all ranks' biases.

        pos_emb: rpe
        zero_optimization: {stage: 3}
        checkpoint_activations: true
        partition_activations: true
        model_parallel_size: 2
    """
    shared = checkpoint_activations and partition_activations and model_parallel_size > 1
    if not (pos_emb == "rpe" and shared and zero_optimization__stage in (2, 3)):
        return None
    return refuse(
        f"pos_emb (rpe) excludes partition_activations with zero_optimization.stage {zero_optimization__stage}",
        "write partition_activations: false, or a lower stage",
        about=["pos_emb", "zero_optimization.stage", "partition_activations"],
    )
