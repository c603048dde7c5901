"""ZeRO: GPT-NeoX's top-level names, sizes that follow from the hidden size, and what excludes what.

A size written as `auto` follows the hidden size as Hugging Face's Trainer has it: a bucket of hidden size squared,
0.9 of it to fetch ahead, and ten rows to keep.
"""

from __future__ import annotations

from collections.abc import Collection

from neoxargs.resolve.rules.rule import Refusal, check, derive, derives
from neoxargs.resolve.rules.synonyms import Default, agreed, same

reduce_scatter = same(
    "zero_reduce_scatter", "zero_optimization.reduce_scatter", otherwise="zero_optimization.reduce_scatter"
)
contiguous_gradients = same(
    "zero_contiguous_gradients",
    "zero_optimization.contiguous_gradients",
    otherwise="zero_optimization.contiguous_gradients",
)
allgather_bucket_size = same(
    "zero_allgather_bucket_size",
    "zero_optimization.allgather_bucket_size",
    otherwise="zero_optimization.allgather_bucket_size",
)


@derives("zero_stage", "zero_optimization.stage")
def stage(zero_stage: int | None, zero_optimization__stage: object, default: Default) -> dict[str, object]:
    """zero_stage and zero_optimization.stage are one setting"""
    found = agreed({"zero_stage": zero_stage, "zero_optimization.stage": zero_optimization__stage})
    if found is None:
        found = default("zero_optimization.stage")
    return {"zero_stage": found if isinstance(found, int) else None, "zero_optimization.stage": found}


@derives("zero_reduce_bucket_size", "zero_optimization.reduce_bucket_size")
def reduce_bucket_size(
    zero_reduce_bucket_size: int | None,
    zero_optimization__reduce_bucket_size: int | None,
    auto: Collection[str],
    hidden_size: int,
    default: Default,
) -> dict[str, int]:
    """zero_reduce_bucket_size and zero_optimization.reduce_bucket_size are one setting; auto is hidden_size squared"""
    nested = "zero_optimization.reduce_bucket_size"
    size = agreed({"zero_reduce_bucket_size": zero_reduce_bucket_size, nested: zero_optimization__reduce_bucket_size})
    if size is None:
        size = hidden_size**2 if nested in auto else default(nested)
    return {"zero_reduce_bucket_size": size, nested: size}


@derive
def zero_optimization__stage3_prefetch_bucket_size(auto: Collection[str], hidden_size: int) -> int | None:
    """auto is 0.9 x hidden_size squared"""
    return hidden_size**2 * 9 // 10 if "zero_optimization.stage3_prefetch_bucket_size" in auto else None


@derive
def zero_optimization__stage3_param_persistence_threshold(auto: Collection[str], hidden_size: int) -> int | None:
    """auto is 10 x hidden_size"""
    return 10 * hidden_size if "zero_optimization.stage3_param_persistence_threshold" in auto else None


@check
def stages_are_for_the_autotuner(zero_optimization__stage: object, autotuning__enabled: bool) -> Refusal:
    """A list of stages is a search space."""
    if not isinstance(zero_optimization__stage, list) or autotuning__enabled:
        return None
    return (
        f"zero_optimization.stage ({zero_optimization__stage}) is a list, which only DeepSpeed's autotuner reads",
        "write one of 0, 1, 2 and 3, or autotuning: {enabled: true}",
    )


@check
def weights_leave_the_gpu_in_stage_3(
    zero_optimization__offload_param__device: str, zero_optimization__stage: object
) -> Refusal:
    """Only stage 3 divides the weights, so only it can put them elsewhere."""
    if zero_optimization__offload_param__device == "none" or zero_optimization__stage not in (0, 1, 2):
        return None
    device = f"zero_optimization.offload_param.device ({zero_optimization__offload_param__device})"
    return f"{device} needs zero_optimization.stage 3, not {zero_optimization__stage}", "write stage: 3"


@check
def optimizer_leaves_the_gpu_from_stage_1(
    zero_optimization__offload_optimizer__device: str, zero_optimization__stage: object
) -> Refusal:
    """The optimizer's state is offloaded in the shares that ZeRO makes of it."""
    device, stage = zero_optimization__offload_optimizer__device, zero_optimization__stage
    name = f"zero_optimization.offload_optimizer.device ({device})"
    if device == "nvme" and stage in (0, 1, 2):
        return f"{name} needs zero_optimization.stage 3, not {stage}", "write device: cpu, or stage: 3"
    if device == "cpu" and stage == 0:
        return f"{name} needs zero_optimization.stage 1, 2 or 3, not 0", "write stage: 1"
    return None


@check
def nvme_has_a_path(
    zero_optimization__offload_param__device: str,
    zero_optimization__offload_param__nvme_path: str | None,
    zero_optimization__offload_optimizer__device: str,
    zero_optimization__offload_optimizer__nvme_path: str | None,
) -> Refusal:
    """What is offloaded to NVMe needs a folder there."""
    places = {
        "zero_optimization.offload_param": (
            zero_optimization__offload_param__device,
            zero_optimization__offload_param__nvme_path,
        ),
        "zero_optimization.offload_optimizer": (
            zero_optimization__offload_optimizer__device,
            zero_optimization__offload_optimizer__nvme_path,
        ),
    }
    for section, (device, path) in places.items():
        if device == "nvme" and not path:
            return f"{section}.device (nvme) needs {section}.nvme_path", "write a folder on the drive"
    return None


@check
def experts_keep_whole_gradients(moe_num_experts: int, zero_optimization__stage: object) -> Refusal:
    """Experts divide their weights between ranks in a way of their own."""
    if moe_num_experts == 1 or zero_optimization__stage not in (2, 3):
        return None
    sentence = f"moe_num_experts ({moe_num_experts}) and zero_optimization.stage ({zero_optimization__stage})"
    return f"{sentence} exclude each other", "write zero_optimization: {stage: 1}"
