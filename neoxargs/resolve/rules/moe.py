"""Mixture of experts: defaults that depend on GPT-NeoX's implementation, and whether the sizes fit together."""

from __future__ import annotations

from collections.abc import Collection

from neoxargs.registry import REGISTRY
from neoxargs.registry.history import removed
from neoxargs.registry.moe import Moe
from neoxargs.resolve.rules.rule import Finding, check, derive, refuse
from neoxargs.resolve.rules.shared_findings import divisible_by
from neoxargs.resolve.rules.synonyms import Default


@derive
def moe_router_type(moe_num_experts: int, written: Collection[str], default: Default) -> str | None:
    """GPT-NeoX had only this router until May 2025"""
    return "topk" if moe_num_experts > 1 and _is_older(written, default) else None


@derive
def moe_expert_interval(moe_num_experts: int, written: Collection[str], default: Default) -> int | None:
    """GPT-NeoX's default until May 2025"""
    return 2 if moe_num_experts > 1 and _is_older(written, default) else None


def _is_older(written: Collection[str], default: Default) -> bool:
    """Whether a file is for GPT-NeoX before May 2025: by its dialect, or by parameters that were retired then."""
    # The same version changed this default.
    return default("rms_norm_epsilon_under_root") is not True or any(map(_is_retired, written))


def _is_retired(name: str) -> bool:
    """Whether a parameter of the experts is one that GPT-NeoX retired when it replaced DeepSpeed's and MegaBlocks'."""
    return REGISTRY.parameters[name].group is Moe and removed(name) is not None


@derive
def moe_normalize_expert_weights(moe_type: str, moe_top_k: int) -> bool | None:
    """DeepSpeed divides the weights of two experts by their sum"""
    return True if moe_type == "deepspeed" and moe_top_k == 2 else None


@derive
def moe_aux_loss_coeff(moe_loss_coeff: float, written: Collection[str]) -> float | None:
    """moe_loss_coeff, its former name"""
    return moe_loss_coeff if "moe_loss_coeff" in written else None


@check
def moe_top_k_at_most_num_experts(moe_num_experts: int, moe_top_k: int) -> Finding | None:
    """Every token is processed by moe_top_k different experts of a layer. With fewer experts than that, every rank
    stops in its first forward pass.

        moe_num_experts: 2
        moe_top_k: 4
    """
    if moe_num_experts == 1 or moe_top_k <= moe_num_experts:
        return None
    what = f"moe_top_k ({moe_top_k}) must be at most moe_num_experts ({moe_num_experts})"
    return refuse(what, f"set moe_top_k to {moe_num_experts} or less")


@check
def tensor_parallel_divides_experts(
    moe_num_experts: int,
    model_parallel_size: int,
    enable_expert_tensor_parallelism: bool,
    hidden_size: int,
    num_attention_heads: int,
) -> Finding | None:
    """Every tensor parallel rank holds the same number of experts, unless enable_expert_tensor_parallelism divides the
    width of every expert among the ranks. With a remainder, some experts would be on no rank.

        moe_num_experts: 3
        model_parallel_size: 2
    """
    if moe_num_experts == 1 or enable_expert_tensor_parallelism:
        return None
    sizes = "model_parallel_size", model_parallel_size
    return divisible_by("moe_num_experts", moe_num_experts, *sizes, hidden_size, num_attention_heads)


@check
def moe_interval_repeats_with_shared_layers(
    moe_num_experts: int,
    moe_expert_interval: int,
    num_layers: int,
    num_unique_layers: int | None,
    param_sharing_style: str,
) -> Finding | None:
    """Layers that share their weights are one layer that is used several times: either all of them have experts, or
    none. With another interval, the first of them would decide for all.

        num_unique_layers: 1
        moe_num_experts: 4
        moe_expert_interval: 2
    """
    if moe_num_experts == 1 or moe_expert_interval == 1 or num_unique_layers in (None, num_layers):
        return None
    unique, depth = num_unique_layers or 1, num_layers
    kinds: dict[int, set[bool]] = {}
    for layer in range(depth):
        weights = layer * unique // depth if param_sharing_style == "spaced" else layer % unique
        kinds.setdefault(weights, set()).add(layer % moe_expert_interval == 0)
    if all(len(found) == 1 for found in kinds.values()):
        return None
    what = f"moe_expert_interval ({moe_expert_interval}) and num_unique_layers ({unique}) make layers with and without"
    return refuse(
        f"{what} experts share weights",
        "set moe_expert_interval to 1, or remove num_unique_layers",
        about=["moe_expert_interval", "num_unique_layers"],
    )
