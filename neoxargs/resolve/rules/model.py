"""The model's shape: the sizes that are derived from others, and which sizes cannot be combined."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from math import ceil
from typing import Any

from neoxargs.base.problems import did_you_mean
from neoxargs.base.record import replace
from neoxargs.facts.layer_kinds import RECURRENT
from neoxargs.resolve.rules.rule import Contradiction, Findings, check, derive, derives, refuse
from neoxargs.resolve.rules.shared_findings import divisible_by, fitting_heads, multiple_of, nearest, set_hidden_size
from neoxargs.resolve.rules.synonyms import Default

#: The kinds of layers in `attention_config`.
LAYER_KINDS = (
    "global", "local", "flash", "sparse_fixed", "sparse_variable", "bigbird", "bslongformer", "gmlp", "amlp", "mamba",
    "rwkv",
)  # fmt: skip
#: Kinds for which GPT-NeoX supports grouped-query attention.
GROUPED_KINDS = ("global", "flash")
#: Kinds without attention heads.
HEADLESS_KINDS = ("mamba", "rwkv", "gmlp")


@derive
def rms_norm_epsilon_under_root(
    norm: str, rms_norm_epsilon: float, rmsnorm_fusion: bool, default: Default
) -> bool | None:
    """GPT-NeoX added rms_norm_epsilon outside the square root until May 2025, except with rmsnorm_fusion"""
    if default("rms_norm_epsilon_under_root") is True:
        return None
    # With such an epsilon the loss hardly differs, and torch has a kernel only for today's form. Apex's fused kernel
    # has always added it inside.
    return norm != "rmsnorm" or rmsnorm_fusion or rms_norm_epsilon <= 1e-7


@derives("attention_config")
def attention_config_covers_every_layer(
    attention_config: Sequence[Any] | None,
    num_layers: int,
    sparsity: str,
    sparse_attention__mode: str,
    sections: Collection[str],
) -> list[str]:
    """one attention type for each layer; a pattern is repeated, and without a pattern every layer is `global`

    GPT-NeoX reads the list only when it builds the model, on every rank. A list with a different number of layers would
    stop every rank with an assertion, or give layers an unintended kind of attention.

        attention_config: [[["flash"], 12]]
    """
    if attention_config is None:
        named = {"sparse_variable": KIND_OF_MODE[sparse_attention__mode]} if "sparse_attention" in sections else {}
        kinds = [named.get(kind, kind) for kind in SPARSITY[sparsity]]
        return [kinds[layer % 2] for layer in range(num_layers)]
    if sparsity != "none":
        raise Contradiction(
            f"attention_config and sparsity ({sparsity}) both select sparse layers",
            "remove sparsity; attention_config replaces it",
            about=["attention_config", "sparsity"],
        )
    if all(isinstance(item, str) for item in attention_config):
        patterns = [(list(attention_config), 1)]
    else:
        patterns = [_repeated(item, num_layers) for item in attention_config]
    count = sum(len(kinds) * times for kinds, times in patterns)
    if count != num_layers:
        raise Contradiction(
            f"the number of layers in attention_config ({count}) must equal num_layers ({num_layers})",
            f'write "all" to repeat a pattern over all layers: [[{json.dumps(patterns[0][0])}, "all"]]',
            about=["attention_config", "num_layers"],
        )
    return [kind for kinds, times in patterns for kind in kinds * times]


@derive
def max_position_embeddings(seq_length: int) -> int:
    """seq_length, one position for each token of a sample"""
    return seq_length


#: DeepSpeed's `sparse_attention.mode` -> the kind of layer.
KIND_OF_MODE = {
    "dense": "global",
    "fixed": "sparse_fixed",
    "variable": "sparse_variable",
    "bigbird": "bigbird",
    "bslongformer": "bslongformer",
}
#: Value of the retired `sparsity` -> the kinds of even and of odd layers; `sparse_attention.mode` can name another
#: sparse kind. GPT-NeoX began `interspersed` with a dense layer in a pipeline and with a sparse one without. All
#: published files used the pipeline, so a dense layer comes first in both cases.
SPARSITY = {
    "none": ("global", "global"),
    "all": ("sparse_variable", "sparse_variable"),
    "interspersed": ("global", "sparse_variable"),
}


def _repeated(item: Any, num_layers: int) -> tuple[list[str], int]:
    """Return the kinds of one item `[[kinds], times]` and how often they are repeated; `all` fills num_layers."""
    match item:
        case [[*kinds], "all" | int() as times] if kinds and all(isinstance(kind, str) for kind in kinds):
            pass
        case _:
            raise Contradiction(
                f"attention_config: expected [[layer types], repetitions], got {item}",
                'for example, write [[["global"], 10], [["flash"], 2]], or [[["local", "global"], "all"]]',
                about=["attention_config"],
            )
    if times == "all" and num_layers % len(kinds):
        raise Contradiction(
            f'attention_config has a pattern of {len(kinds)} layers with "all", '
            f"but num_layers ({num_layers}) is not a multiple of {len(kinds)}",
            f"set num_layers to {nearest(num_layers, len(kinds))}",
            about=["attention_config", "num_layers"],
        )
    return kinds, num_layers // len(kinds) if times == "all" else max(times, 0)


@derive
def num_kv_heads(num_attention_heads: int) -> int:
    """every attention head has its own keys and values"""
    return num_attention_heads


#: Activation -> its gated form, which `mlp_type: llama` used under the ungated name.
GATED_FORM = {"gelu": "geglu", "relu": "reglu", "silu": "swiglu", "swish": "swiglu"}


@derive
def activation(activation: str | None, mlp_type: str) -> str | None:
    """the gated form of the activation, because mlp_type is llama"""
    return GATED_FORM.get(activation or "gelu", activation) if mlp_type == "llama" else activation


@derive
def intermediate_size(intermediate_size: int | None, hidden_size: int, expansion_factor: float | None) -> int:
    """4 x hidden_size, or expansion_factor x hidden_size"""
    # int(), like GPT-NeoX: rounded down.
    return intermediate_size or int((expansion_factor or 4) * hidden_size)


@derive
def use_cpu_initialization(lazy_mpu_init: bool) -> bool | None:
    """lazy_mpu_init initializes weights before the process groups exist, on the CPU"""
    return True if lazy_mpu_init else None


@derive
def attention_softmax_in_fp32(apply_query_key_layer_scaling: bool) -> bool | None:
    """with apply_query_key_layer_scaling, the softmax must be in fp32 to revert the scaling"""
    return True if apply_query_key_layer_scaling else None


@check
def mlp_width_given_once(
    intermediate_size: int,
    expansion_factor: float | None,
    mlp_type: str,
    exact_mlp_width: bool,
    written: Collection[str],
) -> Findings:
    """intermediate_size and expansion_factor both set the width of the MLP, and with `mlp_type: llama`,
    intermediate_size was the width of each of the three matrices. If one of these parameters were silently ignored, a
    model of a different size would be trained. The mistake would show only when the checkpoint cannot be loaded
    elsewhere. With exact_mlp_width, intermediate_size is the width of each matrix again.

        intermediate_size: 128
        expansion_factor: 2
    """
    if "intermediate_size" not in written or expansion_factor is None:
        return
    if mlp_type != "llama":
        both = f"intermediate_size ({intermediate_size}) and expansion_factor ({expansion_factor})"
        about = ["intermediate_size", "expansion_factor"]
        yield refuse(f"{both} both set the MLP width", "remove one of them", about)
    elif not exact_mlp_width:
        yield refuse(
            f"with mlp_type: llama, intermediate_size ({intermediate_size}) used to be the width of each of three "
            "matrices, but is now their total width",
            f"to keep that width, set exact_mlp_width: true; or remove mlp_type and set intermediate_size: "
            f"{3 * intermediate_size}, use_bias_in_mlp: false and activation: swiglu (or geglu, if activation is gelu)",
            about=["intermediate_size", "mlp_type"],
        )


@check
def attention_kinds_exist(attention_config: Sequence[str]) -> Findings:
    """Every layer must be of a kind that GPT-NeoX knows. A misspelt kind stops every rank when it builds that layer,
    after all processes have started.

        attention_config: [global, global, global, globl]
    """
    unknown = next((kind for kind in attention_config if kind not in LAYER_KINDS), None)
    if unknown is not None:
        begin = next((kind for kind in LAYER_KINDS if unknown.startswith(f"{kind}_")), unknown)  # `flash_v2`
        advice = did_you_mean(begin, LAYER_KINDS) or f"use one of {', '.join(LAYER_KINDS)}"
        yield refuse(f"attention_config contains an unknown layer type: {unknown}", advice)


@check
def heads_divide_hidden_size(
    hidden_size: int, num_attention_heads: int, head_dim: int | None, attention_config: Sequence[str]
) -> Findings:
    """Without head_dim, every attention head has hidden_size / num_attention_heads dimensions. With a remainder, an
    assertion in GPT-NeoX stops every rank when it builds the first layer.

        hidden_size: 66
    """
    if head_dim is None and not all(kind in HEADLESS_KINDS for kind in attention_config):
        for finding in multiple_of("hidden_size", hidden_size, "num_attention_heads", num_attention_heads):
            yield replace(finding, advice=fitting_heads(hidden_size, num_attention_heads))


@check
def kv_heads_divide_attention_heads(
    num_attention_heads: int, num_kv_heads: int, attention_config: Sequence[str]
) -> Findings:
    """With grouped-query attention, every key and value head must serve the same number of query heads, and only
    `global` and `flash` attention supports it. Otherwise the shapes of tensors differ, and every rank stops in its
    first forward pass.

        num_kv_heads: 3
    """
    if num_kv_heads == num_attention_heads:
        return
    other = next((kind for kind in attention_config if kind not in (*GROUPED_KINDS, *RECURRENT)), None)
    if other:
        yield refuse(
            f"num_kv_heads ({num_kv_heads}) must equal num_attention_heads ({num_attention_heads}) in {other} layers",
            f"remove num_kv_heads, or use {' or '.join(GROUPED_KINDS)} layers, which support grouped-query attention",
            about=["num_attention_heads", "num_kv_heads"],
        )
    else:
        yield from divisible_by("num_attention_heads", num_attention_heads, "num_kv_heads", num_kv_heads)


@check
def learned_positions_cover_seq_length(seq_length: int, max_position_embeddings: int, pos_emb: str) -> Findings:
    """A learned position embedding has max_position_embeddings rows. A longer sequence looks up rows that do not exist:
    on a GPU, the first step fails with "device-side assert triggered", which does not name the cause.

        seq_length: 64
    """
    if pos_emb == "learned" and seq_length > max_position_embeddings:
        yield refuse(
            f"seq_length ({seq_length}) must be at most max_position_embeddings ({max_position_embeddings})",
            f"set max_position_embeddings to {seq_length}, or seq_length to {max_position_embeddings}",
            about=["seq_length", "max_position_embeddings"],
        )


@check
def rotary_dims_even(
    hidden_size: int, num_attention_heads: int, head_dim: int | None, rotary_pct: float, pos_emb: str
) -> Findings:
    """Rotary position embeddings rotate the dimensions of a head in pairs; rotary_pct is the fraction that is rotated.
    With an odd number, cosines and queries have different shapes, and every rank stops in its first forward pass.

        pos_emb: rotary
        rotary_pct: 0.7
    """
    unequal = head_dim is None and hidden_size % num_attention_heads  # reported by heads_divide_hidden_size
    head = head_dim or hidden_size // num_attention_heads
    rotated = int(head * rotary_pct)
    if pos_emb == "rotary" and not unequal and rotated % 2:
        what = f"rotary_pct ({rotary_pct}) rotates {rotated} of each head's {head} dimensions; the number of rotated "
        advice = f"set rotary_pct to {ceil((rotated - 1) / head * 1e4) / 1e4:g}"
        yield refuse(f"{what}dimensions must be even", advice, about=["rotary_pct"])


@check
def sinusoidal_needs_even_hidden_size(hidden_size: int, num_attention_heads: int, pos_emb: str) -> Findings:
    """A sinusoidal position embedding holds as many sines as cosines. With an odd hidden_size, the position embedding
    would be one element shorter than the word embedding, and adding the two would fail on every rank in the first
    forward pass.

        pos_emb: sinusoidal
        hidden_size: 65
        num_attention_heads: 5
    """
    if pos_emb == "sinusoidal" and hidden_size % 2:
        what = f"hidden_size ({hidden_size}) must be even if pos_emb is sinusoidal"
        yield refuse(what, set_hidden_size(hidden_size, num_attention_heads), about=["hidden_size", "pos_emb"])


@check
def unique_layers_divide_num_layers(num_layers: int, num_unique_layers: int | None) -> Findings:
    """The model has num_unique_layers sets of layer weights, and each set is used equally often. If the division left a
    remainder, the model would not have num_layers layers.

        num_unique_layers: 3
    """
    if num_unique_layers is None:
        return
    if num_unique_layers > num_layers:
        what = f"num_unique_layers ({num_unique_layers}) must be at most num_layers ({num_layers})"
        yield refuse(what, "remove num_unique_layers to give every layer its own weights")
    else:
        yield from multiple_of("num_layers", num_layers, "num_unique_layers", num_unique_layers)


@check
def shared_layers_have_one_kind(
    attention_config: Sequence[str], num_layers: int, num_unique_layers: int | None, param_sharing_style: str
) -> Findings:
    """Layers that share their weights are one layer that is used several times, and it can only be of one kind. If
    attention_config names several kinds for it, the first would be used and the others ignored.

        num_unique_layers: 2
        param_sharing_style: spaced
        attention_config: [[["local", "global"], "all"]]
    """
    if num_unique_layers is None or num_layers % num_unique_layers or len(attention_config) != num_layers:
        return
    spaced, times = param_sharing_style == "spaced", num_layers // num_unique_layers
    groups = [
        attention_config[index * times : (index + 1) * times] if spaced else attention_config[index::num_unique_layers]
        for index in range(num_unique_layers)
    ]
    mixed = next((group for group in groups if len(set(group)) > 1), None)
    if mixed is not None:
        kinds = " and ".join(sorted(set(mixed)))
        both = f"num_unique_layers ({num_unique_layers}) and param_sharing_style ({param_sharing_style})"
        yield refuse(
            f"with {both}, layers of different types would share weights: {kinds}",
            "use one layer type in attention_config for all layers that share weights",
            about=["attention_config", "num_unique_layers", "param_sharing_style"],
        )


@check
def shared_layers_exclude_recompute_with_zero_2(
    num_layers: int,
    num_unique_layers: int | None,
    checkpoint_activations: bool | str,
    deepspeed_activation_checkpointing: bool,
    zero_optimization__stage: object,
) -> Findings:
    """ZeRO stages 2 and 3 reduce the gradient of a weight once per backward pass. A shared layer that is recomputed
    produces a gradient in a separate backward pass for each use: gradients are reduced twice or lost, and the model is
    not trained correctly.

        num_unique_layers: 2
        checkpoint_activations: true
        zero_optimization: {stage: 3}
    """
    shared = num_unique_layers not in (None, num_layers) and checkpoint_activations is True
    stage = zero_optimization__stage
    if shared and (stage == 3 or (stage == 2 and deepspeed_activation_checkpointing)):
        cause = "deepspeed_activation_checkpointing" if stage == 2 else "checkpoint_activations"
        yield refuse(
            f"num_unique_layers ({num_unique_layers}) and {cause} cannot be combined with ZeRO stage {stage}",
            f"set {cause} to false, or zero_optimization.stage to 0 or 1",
            about=["num_unique_layers", cause, "zero_optimization.stage"],
        )


@check
def post_layernorm_residual_excludes_gpt_j_residual(
    apply_residual_connection_post_layernorm: bool, gpt_j_residual: bool
) -> Findings:
    """With gpt_j_residual, attention and MLP run in parallel and share one residual, whereas
    apply_residual_connection_post_layernorm takes each residual from the output of its own norm. One of the two would
    be ignored.

        apply_residual_connection_post_layernorm: true
        gpt_j_residual: true
    """
    if apply_residual_connection_post_layernorm and gpt_j_residual:
        what = "apply_residual_connection_post_layernorm and gpt_j_residual cannot be combined"
        yield refuse(what, "remove one of them")


@check
def gmlp_excludes_partition_activations(attention_config: Sequence[str], partition_activations: bool) -> Findings:
    """A gMLP block mixes tokens along the sequence, the dimension in which partitioned activations are split across
    tensor parallel ranks. If the block were recomputed from one partition, its gradients would be wrong.

        partition_activations: true
        attention_config: [[["gmlp"], "all"]]
    """
    if partition_activations and {"gmlp", "amlp"} & set(attention_config):
        what = "partition_activations cannot be combined with gmlp or amlp layers"
        yield refuse(what, "set partition_activations to false", about=["partition_activations", "attention_config"])
