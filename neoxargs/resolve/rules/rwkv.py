"""RWKV layers: their widths, and what they cannot be combined with."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from neoxargs.resolve.rules.rule import Findings, check, derive, refuse
from neoxargs.resolve.rules.shared_findings import multiple_of

#: GPT-NeoX rounds `ffn_dim` down to a multiple of this.
WIDTH_STEP = 32


@derive
def dim_att(attention_config: Sequence[str], hidden_size: int) -> int | None:
    """hidden_size"""
    return hidden_size if "rwkv" in attention_config else None


@derive
def head_size(attention_config: Sequence[str], dim_att: int | None, num_attention_heads: int) -> int | None:
    """dim_att / num_attention_heads"""
    return dim_att // num_attention_heads if dim_att and "rwkv" in attention_config else None


@derive
def ffn_dim(
    attention_config: Sequence[str],
    hidden_size: int,
    intermediate_size: int,
    expansion_factor: float | None,
    written: Collection[str],
) -> int | None:
    """3.5 x hidden_size, or the width set by intermediate_size or expansion_factor; rounded down to a multiple of 32"""
    if "rwkv" not in attention_config:
        return None
    is_set = "intermediate_size" in written or expansion_factor
    width = intermediate_size if is_set else int(3.5 * hidden_size)
    return width // WIDTH_STEP * WIDTH_STEP or WIDTH_STEP


@check
def rwkv_heads_divide_dim_att(
    dim_att: int | None, head_size: int | None, num_attention_heads: int, attention_config: Sequence[str]
) -> Findings:
    """The time mixing of an RWKV layer consists of num_attention_heads heads of head_size channels each. GPT-NeoX
    replaces a head_size that disagrees with the other two, and trains a model of another shape than the file says.

        attention_config: [[["rwkv"], "all"]]
        head_size: 8
    """
    if "rwkv" not in attention_config or not (dim_att and head_size):
        return
    if dim_att % num_attention_heads:
        yield from multiple_of("dim_att", dim_att, "num_attention_heads", num_attention_heads)
    elif head_size * num_attention_heads != dim_att:
        what = f"head_size ({head_size}) must be dim_att / num_attention_heads ({dim_att} / {num_attention_heads})"
        fitting = f", or set num_attention_heads to {dim_att // head_size}" if dim_att % head_size == 0 else ""
        yield refuse(what, f"remove head_size{fitting}", ["head_size", "dim_att"])


@check
def rwkv_excludes_tensor_parallelism(attention_config: Sequence[str], model_parallel_size: int) -> Findings:
    """The channels of an RWKV layer are not divided among tensor parallel ranks, in GPT-NeoX or here. The matrices
    would be divided nevertheless, and their shapes would not fit together in the first forward pass.

        attention_config: [[["rwkv"], "all"]]
        model_parallel_size: 2
    """
    if "rwkv" in attention_config and model_parallel_size != 1:
        yield refuse(
            f"RWKV layers cannot be divided among tensor parallel ranks: model_parallel_size is {model_parallel_size}",
            "set model_parallel_size to 1; ZeRO and pipeline parallelism divide the weights of these layers as well",
            about=["model_parallel_size", "attention_config"],
        )


@check
def rwkv_excludes_shared_layers(
    attention_config: Sequence[str], num_unique_layers: int | None, num_layers: int
) -> Findings:
    """The first RWKV layer of a model also normalises its input. A layer that is used several times would repeat that
    at each use, and remove what the layers before had added to the residual stream.

        attention_config: [[["rwkv"], "all"]]
        num_unique_layers: 1
    """
    if "rwkv" in attention_config and num_unique_layers not in (None, num_layers):
        about = ["num_unique_layers", "attention_config"]
        yield refuse("RWKV layers cannot share weights", "remove num_unique_layers", about)
