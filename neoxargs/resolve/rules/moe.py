"""Mixture of experts: defaults that depend on GPT-NeoX's implementation, and whether the sizes fit together."""

from __future__ import annotations

from collections.abc import Collection
from datetime import date

from neoxargs.base.problems import listed
from neoxargs.facts.layout import ranks_of_replica
from neoxargs.facts.optimizers import OPTIMIZERS
from neoxargs.registry import REGISTRY
from neoxargs.registry.history import removed
from neoxargs.registry.moe import Moe
from neoxargs.resolve.rules.rule import Findings, check, derive, refuse, warn
from neoxargs.resolve.rules.shared_findings import divisible_by

#: The day on which GPT-NeoX replaced DeepSpeed's and MegaBlocks' experts.
REPLACED = date(2025, 5, 9)
#: Optimizers that support experts which data parallel ranks divide among them.
AVERAGING = [name for name, kind in OPTIMIZERS.items() if kind.divides_experts]


@derive
def moe_router_type(moe_num_experts: int, written: Collection[str], day: date) -> str | None:
    """GPT-NeoX had only this router until May 2025"""
    return "topk" if moe_num_experts > 1 and _is_older(written, day) else None


@derive
def moe_expert_interval(moe_num_experts: int, written: Collection[str], day: date) -> int | None:
    """GPT-NeoX's default until May 2025"""
    return 2 if moe_num_experts > 1 and _is_older(written, day) else None


def _is_older(written: Collection[str], day: date) -> bool:
    """Whether a file is for GPT-NeoX before May 2025: by its dialect, or by parameters that were retired then."""
    return day < REPLACED or _is_dated(written)


def _is_dated(written: Collection[str]) -> bool:
    """Whether a file sets a parameter that GPT-NeoX retired when it replaced DeepSpeed's and MegaBlocks' experts.

    A current file may have moe_expert_parallel_size, too; it tells the age of a file only where `dialect` does not.
    """
    undated = () if "dialect" in written else ("moe_expert_parallel_size",)
    of_experts = (name for name in written if REGISTRY.parameters[name].group is Moe or name in undated)
    return any(removed(name) is not None for name in of_experts)


@derive
def moe_normalize_expert_weights(moe_type: str, moe_top_k: int) -> bool | None:
    """DeepSpeed divides the weights of two experts by their sum"""
    return True if moe_type == "deepspeed" and moe_top_k == 2 else None


@derive
def moe_aux_loss_coeff(moe_loss_coeff: float, written: Collection[str]) -> float | None:
    """the value of moe_loss_coeff, the former name of this parameter"""
    return moe_loss_coeff if "moe_loss_coeff" in written else None


@check
def moe_top_k_at_most_num_experts(moe_num_experts: int, moe_top_k: int) -> Findings:
    """Every token is processed by moe_top_k different experts of a layer. With fewer experts than that, every rank
    stops in its first forward pass.

        moe_num_experts: 2
        moe_top_k: 4
    """
    if moe_num_experts != 1 and moe_top_k > moe_num_experts:
        what = f"moe_top_k ({moe_top_k}) must be at most moe_num_experts ({moe_num_experts})"
        yield refuse(what, f"set moe_top_k to {moe_num_experts} or less")


@check
def tensor_parallel_divides_experts(
    moe_num_experts: int,
    model_parallel_size: int,
    enable_expert_tensor_parallelism: bool,
    hidden_size: int,
    num_attention_heads: int,
) -> Findings:
    """Every tensor parallel rank holds the same number of experts, unless enable_expert_tensor_parallelism divides the
    width of every expert among the ranks. With a remainder, some experts would be on no rank.

        moe_num_experts: 3
        model_parallel_size: 2
    """
    if moe_num_experts != 1 and not enable_expert_tensor_parallelism:
        sizes = "model_parallel_size", model_parallel_size
        yield from divisible_by("moe_num_experts", moe_num_experts, *sizes, hidden_size, num_attention_heads)


@check
def expert_parallel_divides_experts(
    moe_num_experts: int,
    moe_expert_parallel_size: int,
    model_parallel_size: int,
    enable_expert_tensor_parallelism: bool,
) -> Findings:
    """The ranks of an expert parallel group divide the experts of their tensor parallel rank equally. If the division
    left a remainder, some experts would be on no rank.

        moe_num_experts: 3
        moe_expert_parallel_size: 2
    """
    # With expert tensor parallelism every tensor parallel rank holds a part of each expert, else some whole experts.
    ranks = 1 if enable_expert_tensor_parallelism else model_parallel_size
    if moe_num_experts != 1 and moe_num_experts % ranks == 0:  # otherwise, it is another rule's problem
        name = "moe_num_experts" if ranks == 1 else "the number of experts per tensor parallel rank"
        size, about = moe_expert_parallel_size, ["moe_num_experts", "moe_expert_parallel_size"]
        yield from divisible_by(name, moe_num_experts // ranks, "moe_expert_parallel_size", size, about=about)


@check
def expert_parallel_divides_replicas(
    moe_num_experts: int, moe_expert_parallel_size: int, gpus: int, model_parallel_size: int, pipe_parallel_size: int,
    context_parallel_size: int,
) -> Findings:  # fmt: skip
    """An expert parallel group consists of consecutive data parallel ranks, which hold different experts: of replicas,
    and with context_parallel_size, of the ranks among which a replica divides its sequences. If their number is not a
    multiple of the group's size, the last group is missing some ranks and the experts on those ranks.

        moe_num_experts: 6
        moe_expert_parallel_size: 3
    """
    replicas, rest = divmod(gpus, ranks_of_replica(model_parallel_size, pipe_parallel_size, context_parallel_size))
    if moe_num_experts != 1 and rest == 0:  # otherwise, it is another rule's problem
        context = ["context_parallel_size"] if context_parallel_size > 1 else []
        name, ranks = " x ".join(["the number of replicas", *context]), replicas * context_parallel_size
        size, about = moe_expert_parallel_size, ["moe_expert_parallel_size", *context]
        yield from divisible_by(name, ranks, "moe_expert_parallel_size", size, about=about)


@check
def expert_parallel_excludes_zero_3(
    moe_num_experts: int, moe_expert_parallel_size: int, zero_optimization__stage: object
) -> Findings:
    """ZeRO-3 partitions every weight over all data parallel ranks. If only some of these ranks held an expert, ZeRO-3
    would join parts of different experts.

        moe_num_experts: 4
        moe_expert_parallel_size: 2
        zero_optimization: {stage: 3}
    """
    if moe_num_experts != 1 and moe_expert_parallel_size != 1 and zero_optimization__stage == 3:
        yield refuse(
            f"moe_expert_parallel_size ({moe_expert_parallel_size}) and zero_optimization.stage (3) cannot be "
            "combined: ZeRO-3 already partitions the experts over all data parallel ranks",
            "set moe_expert_parallel_size to 1, or zero_optimization.stage to 0, 1 or 2",
            about=["moe_expert_parallel_size", "zero_optimization.stage"],
        )


@check
def expert_parallel_needs_partitioned_reduction(
    moe_num_experts: int,
    moe_expert_parallel_size: int,
    zero_optimization__stage: object,
    zero_optimization__reduce_scatter: bool,
    zero_optimization__contiguous_gradients: bool,
) -> Findings:
    """ZeRO reduces the gradients of an expert over the ranks that hold it. Without reduce_scatter or
    contiguous_gradients, DeepSpeed reduces the gradients of experts like those of all other weights, and an assertion
    stops every rank when it builds the optimizer.

        moe_num_experts: 4
        moe_expert_parallel_size: 2
        zero_optimization: {stage: 1, reduce_scatter: false}
    """
    if moe_num_experts == 1 or moe_expert_parallel_size == 1:
        return
    contiguous = zero_optimization__contiguous_gradients or zero_optimization__stage != 2
    if not zero_optimization__reduce_scatter or not contiguous:
        key = f"zero_optimization.{'contiguous_gradients' if zero_optimization__reduce_scatter else 'reduce_scatter'}"
        what = f"{key} (false) and moe_expert_parallel_size ({moe_expert_parallel_size}) cannot be combined"
        yield refuse(what, f"remove {key}", about=["moe_expert_parallel_size", key])


@check
def expert_parallel_needs_averaging_optimizer(
    moe_num_experts: int, moe_expert_parallel_size: int, optimizer__type: str | None
) -> Findings:
    """The gradients of an expert are averaged over the ranks that hold it, those of other weights over all data
    parallel ranks. DeepSpeed's own optimizers, and optimizers that average the momentum instead of the gradients, treat
    experts like other weights.

        moe_num_experts: 4
        moe_expert_parallel_size: 2
        optimizer: {type: OneBitAdam, params: {lr: 0.001}}
    """
    averages = (optimizer__type or "Adam").lower() in map(str.lower, AVERAGING)
    if moe_num_experts != 1 and moe_expert_parallel_size != 1 and not averages:
        both = f"optimizer.type ({optimizer__type}) and moe_expert_parallel_size ({moe_expert_parallel_size})"
        advice = f"set optimizer.type to {listed(AVERAGING)}, or remove moe_expert_parallel_size"
        yield refuse(f"{both} cannot be combined", advice, about=["optimizer.type", "moe_expert_parallel_size"])


@check
def moe_interval_repeats_with_shared_layers(
    moe_num_experts: int,
    moe_expert_interval: int,
    num_layers: int,
    num_unique_layers: int | None,
    param_sharing_style: str,
) -> Findings:
    """Layers that share their weights are one layer that is used several times: either all of them have experts, or
    none. If moe_expert_interval gave experts to only some of these layers, the first one would decide for all of them.

        num_unique_layers: 1
        moe_num_experts: 4
        moe_expert_interval: 2
    """
    if moe_num_experts == 1 or moe_expert_interval == 1 or num_unique_layers in (None, num_layers):
        return
    unique, kinds = num_unique_layers or 1, dict[int, set[bool]]()
    for layer in range(num_layers):
        weights = layer * unique // num_layers if param_sharing_style == "spaced" else layer % unique
        kinds.setdefault(weights, set()).add(layer % moe_expert_interval == 0)
    if any(len(found) > 1 for found in kinds.values()):
        both = f"moe_expert_interval ({moe_expert_interval}) and num_unique_layers ({unique})"
        yield refuse(
            f"with {both}, layers with experts would share weights with layers without experts",
            "set moe_expert_interval to 1, or remove num_unique_layers",
            about=["moe_expert_interval", "num_unique_layers"],
        )


@check
def router_balances_the_load(
    moe_num_experts: int, moe_top_k: int, moe_router_type: str, moe_aux_loss_coeff: float
) -> Findings:
    """Without a load-balancing loss, a router that takes the highest probabilities soon sends most tokens to a few
    experts: the others do not learn, and the ranks of the chosen ones slow the run down
    (https://github.com/pytorch/torchtitan/issues/1246, https://github.com/verl-project/verl/pull/4103).

        moe_num_experts: 4
        moe_router_type: topk
    """
    if moe_num_experts > max(1, moe_top_k) and moe_router_type == "topk" and not moe_aux_loss_coeff:
        what = "with moe_router_type (topk) and moe_aux_loss_coeff (0), nothing balances the load of "
        about = ["moe_router_type", "moe_aux_loss_coeff"]
        yield warn(f"{what}{moe_num_experts} experts", "set moe_aux_loss_coeff to 0.01", about)
