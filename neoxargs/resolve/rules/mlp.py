"""The feed-forward layer: the width of a gated one, which GPT-NeoX and other programs define differently, and ONNX."""

from __future__ import annotations

from collections.abc import Collection

from neoxargs.facts.model import GATED
from neoxargs.resolve.rules.rule import Finding, check, refuse, warn


@check
def gated_width_is_a_third(
    activation: str,
    intermediate_size: int,
    mlp_multiple_of: int,
    exact_mlp_width: bool,
    hidden_size: int,
    moe_num_experts: int,
    written: Collection[str],
) -> Finding | None:
    """In GPT-NeoX, intermediate_size is the total width of the three matrices of a gated feed-forward layer; in Hugging
    Face and Megatron-LM, it is the width of each. A size that makes the layer narrower than twice hidden_size is
    probably the width of each, and a model with a third of the feed-forward weights is trained. Experts may be that
    narrow, so of theirs only a size that is not a multiple of 3 is reported.

        activation: swiglu
        intermediate_size: 180
    """
    width = -(-(int(intermediate_size * 2 / 3) // 2) // mlp_multiple_of) * mlp_multiple_of
    narrow_expert = moe_num_experts > 1 and intermediate_size % 3 == 0
    intended = exact_mlp_width or "intermediate_size" not in written or narrow_expert
    if activation not in GATED or intended or width >= 2 * hidden_size:
        return None
    what = f"with activation ({activation}), intermediate_size ({intermediate_size}) is the total width of three "
    advice = f"if each matrix should be {intermediate_size} wide, as in Hugging Face and Megatron-LM, "
    advice += f"set exact_mlp_width: true; otherwise, set intermediate_size: {width} and exact_mlp_width: true"
    return warn(f"{what}matrices, so that each is {width} wide", advice, ["intermediate_size", "activation"])


@check
def onnx_safe_excludes_bias_gelu_fusion(onnx_safe: bool, bias_gelu_fusion: bool) -> Finding | None:
    """onnx_safe requests a model that can be exported to ONNX, but the fused kernel of bias_gelu_fusion cannot be
    exported: the export would fail after training.

        onnx_safe: true
        bias_gelu_fusion: true
    """
    if not (onnx_safe and bias_gelu_fusion):
        return None
    return refuse("onnx_safe and bias_gelu_fusion cannot be combined", "remove one of them")
