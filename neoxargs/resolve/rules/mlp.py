"""The feed-forward layer: its width, which GPT-NeoX and other programs define differently if it is gated, and ONNX."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from neoxargs.facts.layer_kinds import RECURRENT
from neoxargs.facts.model import GATED, width_of_mlp
from neoxargs.resolve.rules.rule import Findings, check, refuse, warn
from neoxargs.resolve.rules.shared_findings import nearest


@check
def gated_width_is_a_third(
    activation: str,
    intermediate_size: int,
    mlp_multiple_of: int,
    exact_mlp_width: bool,
    hidden_size: int,
    moe_num_experts: int,
    mlp_type: str,
    written: Collection[str],
) -> Findings:
    """In GPT-NeoX, intermediate_size is the total width of the three matrices of a gated feed-forward layer; in Hugging
    Face and Megatron-LM, it is the width of each. A size that makes the layer narrower than twice hidden_size is
    probably the width of each, and a model with a third of the feed-forward weights is trained. Experts may be that
    narrow, so of theirs only a size that is not a multiple of 3 is reported.

        activation: swiglu
        intermediate_size: 180
    """
    width = width_of_mlp(intermediate_size, activation, mlp_multiple_of, exact_mlp_width)
    narrow_expert = moe_num_experts > 1 and intermediate_size % 3 == 0
    intended = exact_mlp_width or "intermediate_size" not in written or narrow_expert
    # With mlp_type: llama, `mlp_width_given_once` refuses it.
    if activation in GATED and mlp_type != "llama" and not intended and width < 2 * hidden_size:
        what = f"with activation ({activation}), intermediate_size ({intermediate_size}) is the total width of three "
        advice = f"if each matrix should be {intermediate_size} wide, as in Hugging Face and Megatron-LM, "
        advice += f"set exact_mlp_width: true; otherwise, set intermediate_size: {width} and exact_mlp_width: true"
        yield warn(f"{what}matrices, so that each is {width} wide", advice, ["intermediate_size", "activation"])


@check
def tensor_parallel_divides_mlp_width(
    intermediate_size: int,
    activation: str,
    mlp_multiple_of: int,
    exact_mlp_width: bool,
    model_parallel_size: int,
    attention_config: Sequence[str],
    moe_num_experts: int,
    hidden_size: int,
) -> Findings:
    """Every tensor parallel rank holds an equal shard of the features between the two matrices of a feed-forward layer.
    With a remainder, Megatron's `ensure_divisibility` stops every rank when it builds the first layer.

        activation: swiglu
        intermediate_size: 387
        model_parallel_size: 2
    """
    # Experts have a rule of their own, and so has a hidden_size of which the width is a multiple.
    others = moe_num_experts > 1 or hidden_size % model_parallel_size
    if not others and not all(kind in RECURRENT for kind in attention_config):
        yield from _undivided(model_parallel_size, 1, intermediate_size, activation, mlp_multiple_of, exact_mlp_width)


@check
def tensor_parallel_divides_expert_width(
    intermediate_size: int,
    activation: str,
    mlp_multiple_of: int,
    exact_mlp_width: bool,
    model_parallel_size: int,
    moe_num_experts: int,
    enable_expert_tensor_parallelism: bool,
    moe_num_shared_experts: int,
) -> Findings:
    """With enable_expert_tensor_parallelism, every tensor parallel rank holds an equal shard of the width of every
    expert, and always of the shared experts together. With a remainder, the shards would have other sizes.

        moe_num_experts: 2
        moe_aux_loss_coeff: 0.01
        enable_expert_tensor_parallelism: true
        activation: swiglu
        intermediate_size: 387
        model_parallel_size: 2
    """
    if moe_num_experts != 1:
        shared = 1 if enable_expert_tensor_parallelism else moe_num_shared_experts
        size, unit = intermediate_size, mlp_multiple_of
        yield from _undivided(model_parallel_size, shared, size, activation, unit, exact_mlp_width)


def _undivided(ranks: int, together: int, size: int, activation: str, unit: int, exact: bool) -> Findings:
    """Yield the finding of networks whose joint width the ranks cannot share equally. size: intermediate_size."""
    width = together * width_of_mlp(size, activation, unit, exact)
    if width % ranks == 0:
        return
    if exact:
        advice = f"set intermediate_size to {nearest(size, ranks)}"
    else:
        fitting = math.lcm(unit, ranks)
        wide = width_of_mlp(size, activation, fitting, exact)
        advice = f"set mlp_multiple_of to {fitting}, which makes feed-forward layers {wide} wide"
    what = f"the width of feed-forward layers ({width}) must be a multiple of model_parallel_size ({ranks})"
    yield refuse(what, f"{advice}, or model_parallel_size to 1", about=["model_parallel_size", "intermediate_size"])


@check
def onnx_safe_excludes_bias_gelu_fusion(onnx_safe: bool, bias_gelu_fusion: bool) -> Findings:
    """onnx_safe requests a model that can be exported to ONNX, but the fused kernel of bias_gelu_fusion cannot be
    exported: the export would fail after training.

        onnx_safe: true
        bias_gelu_fusion: true
    """
    if onnx_safe and bias_gelu_fusion:
        yield refuse("onnx_safe and bias_gelu_fusion cannot be combined", "remove one of them")
