"""ZeRO: GPT-NeoX's top-level names, bucket sizes derived from hidden_size, and which settings need which stage.

A size of `auto` is derived as in Hugging Face's Trainer: hidden_size squared for the reduce bucket, 0.9 of it for the
prefetch bucket, and 10 x hidden_size for the persistence threshold.
"""

from __future__ import annotations

from collections.abc import Collection

from neoxargs.resolve.rules.rule import Findings, check, derive, derives, refuse
from neoxargs.resolve.rules.synonyms import Default, agreed_value, ignored, synonyms

synonyms("zero_reduce_scatter", "zero_optimization.reduce_scatter")
synonyms("zero_contiguous_gradients", "zero_optimization.contiguous_gradients")
synonyms("zero_allgather_bucket_size", "zero_optimization.allgather_bucket_size")


@derives("zero_stage", "zero_optimization.stage")
def stage(zero_stage: int | None, zero_optimization__stage: object, default: Default) -> dict[str, object]:
    """zero_stage and zero_optimization.stage are the same setting"""
    nested = "zero_optimization.stage"
    both = {"zero_stage": zero_stage, nested: zero_optimization__stage}
    value = agreed_value(both, advice=ignored("zero_stage", nested))
    if value is None:
        value = default(nested)
    # A list is the autotuner's search space, which has no top-level form.
    return {"zero_stage": value if isinstance(value, int) else None, nested: value}


@derives("zero_reduce_bucket_size", "zero_optimization.reduce_bucket_size")
def reduce_bucket_size(
    zero_reduce_bucket_size: int | None,
    zero_optimization__reduce_bucket_size: int | None,
    auto: Collection[str],
    hidden_size: int,
    default: Default,
) -> dict[str, int]:
    """zero_reduce_bucket_size and zero_optimization.reduce_bucket_size are the same setting; auto means hidden_size
    squared"""
    nested = "zero_optimization.reduce_bucket_size"
    both = {"zero_reduce_bucket_size": zero_reduce_bucket_size, nested: zero_optimization__reduce_bucket_size}
    size = agreed_value(both, advice=ignored("zero_reduce_bucket_size", nested))
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
def zero_stage_list_needs_autotuning(zero_optimization__stage: object, autotuning__enabled: bool) -> Findings:
    """A list of stages is a search space for DeepSpeed's autotuner. Without the autotuner, DeepSpeed compares the list
    with numbers, and every rank stops with a TypeError when it reads DeepSpeed's JSON.

        zero_optimization: {stage: [0, 1]}
    """
    if isinstance(zero_optimization__stage, list) and not autotuning__enabled:
        yield refuse(
            f"zero_optimization.stage ({zero_optimization__stage}) is a list, which only DeepSpeed's autotuner accepts",
            "set zero_optimization.stage to 0, 1, 2 or 3, or set autotuning.enabled to true and autotuning_run to tune",
            about=["zero_optimization.stage"],
        )


@check
def offload_param_needs_zero_3(
    zero_optimization__offload_param__device: str, zero_optimization__stage: object
) -> Findings:
    """Only ZeRO stage 3 partitions the weights and can offload them. In lower stages, DeepSpeed ignores offload_param:
    the weights stay on the GPU, and the run can run out of memory in its first step.

        zero_optimization: {stage: 2, offload_param: {device: cpu}}
    """
    if zero_optimization__offload_param__device != "none" and zero_optimization__stage in (0, 1, 2):
        device = f"zero_optimization.offload_param.device ({zero_optimization__offload_param__device})"
        what = f"{device} needs zero_optimization.stage 3, not {zero_optimization__stage}"
        yield refuse(what, "set zero_optimization.stage to 3, or remove offload_param")


@check
def offload_optimizer_needs_zero(
    zero_optimization__offload_optimizer__device: str, zero_optimization__stage: object
) -> Findings:
    """ZeRO offloads its partitions of the optimizer state: to the CPU from stage 1 on, to NVMe in stage 3. Otherwise
    the state stays on the GPU, and the run can run out of memory in its first optimizer step.

        zero_optimization: {stage: 0, offload_optimizer: {device: cpu}}
    """
    device, stage = zero_optimization__offload_optimizer__device, zero_optimization__stage
    name = f"zero_optimization.offload_optimizer.device ({device})"
    if device == "nvme" and stage in (0, 1, 2):
        advice = "set zero_optimization.stage to 3, or set the device to cpu"
        yield refuse(f"{name} needs zero_optimization.stage 3, not {stage}", advice)
    elif device == "cpu" and stage == 0:
        yield refuse(f"{name} needs zero_optimization.stage 1, 2 or 3, not 0", "set zero_optimization.stage to 1")


@check
def nvme_offload_needs_nvme_path(
    zero_optimization__offload_param__device: str,
    zero_optimization__offload_param__nvme_path: str | None,
    zero_optimization__offload_optimizer__device: str,
    zero_optimization__offload_optimizer__nvme_path: str | None,
) -> Findings:
    """Partitions that are offloaded to NVMe are written to files in nvme_path. Without nvme_path, DeepSpeed stops every
    rank after the model has been built, when it starts to swap.

        zero_optimization: {stage: 3, offload_param: {device: nvme}}
    """
    optimizer = (zero_optimization__offload_optimizer__device, zero_optimization__offload_optimizer__nvme_path)
    param = (zero_optimization__offload_param__device, zero_optimization__offload_param__nvme_path)
    for section, (device, path) in {"offload_param": param, "offload_optimizer": optimizer}.items():
        if device == "nvme" and not path:
            names = [f"zero_optimization.{section}.device", f"zero_optimization.{section}.nvme_path"]
            advice = f"set {names[1]} to a folder on the NVMe drive"
            yield refuse(f"{names[0]} (nvme) needs {names[1]}", advice, names)


@check
def zenflow_interval_has_a_unit(
    zero_optimization__zenflow__select_strategy: str,
    zero_optimization__zenflow__select_interval: int | str,
    sections: Collection[str],
) -> Findings:
    """select_interval counts steps or epochs, and only select_strategy says which. If one of the two is auto and the
    other is not, DeepSpeed stops every rank when it builds the engine.

        zero_optimization: {stage: 2, zenflow: {select_interval: 4}}
    """
    strategy, interval = zero_optimization__zenflow__select_strategy, zero_optimization__zenflow__select_interval
    if "zero_optimization.zenflow" in sections and (strategy == "auto") != (interval == "auto"):
        what = f"zero_optimization.zenflow.select_strategy ({strategy}) and zero_optimization.zenflow.select_interval "
        advice = "set select_interval to a number" if interval == "auto" else "set select_strategy to step or epoch"
        yield refuse(f"{what}({interval}) must both be auto, or neither", f"{advice}, or remove both")


@check
def zenflow_updates_between_selections(
    zero_optimization__zenflow__select_strategy: str,
    zero_optimization__zenflow__select_interval: int | str,
    zero_optimization__zenflow__update_interval: int | str,
    sections: Collection[str],
) -> Findings:
    """The gradients of the unimportant columns are applied at least once before the columns are chosen again. If
    update_interval is longer than select_interval, DeepSpeed stops every rank when it builds the engine.

        zero_optimization: {stage: 2, zenflow: {select_strategy: step, select_interval: 2, update_interval: 4}}
    """
    select, update = zero_optimization__zenflow__select_interval, zero_optimization__zenflow__update_interval
    by_steps = "zero_optimization.zenflow" in sections and zero_optimization__zenflow__select_strategy == "step"
    if by_steps and not isinstance(select, str) and not isinstance(update, str) and update > select:
        names = ["zero_optimization.zenflow.update_interval", "zero_optimization.zenflow.select_interval"]
        what = f"{names[0]} ({update}) must be at most {names[1]} ({select})"
        yield refuse(what, f"set update_interval to {select} or less", names)


@check
def divided_gradients_need_all_reduce(
    prescale_gradients: bool,
    gradient_predivide_factor: float,
    zero_optimization__reduce_scatter: bool,
    zero_optimization__stage: object,
) -> Findings:
    """With partitioned gradients, the reduce-scatter of DeepSpeed averages them only after they are summed. If they are
    to be divided before, DeepSpeed stops every rank with an AssertionError when it builds the engine. In stage 3 it
    also leaves gradients divided by gradient_predivide_factor if that is the number of replicas.

        prescale_gradients: true
        zero_optimization: {stage: 2, reduce_scatter: true}
    """
    stage, factor = zero_optimization__stage, gradient_predivide_factor
    if stage == 3 and factor != 1 and not prescale_gradients:
        what = f"gradient_predivide_factor ({factor:g}) cannot be combined with zero_optimization.stage 3"
        about = ["gradient_predivide_factor", "zero_optimization.stage"]
        yield refuse(what, "remove gradient_predivide_factor, or set zero_optimization.stage to 1", about)
    elif stage in (2, 3) and zero_optimization__reduce_scatter and (factor != 1 or prescale_gradients):
        name = "prescale_gradients" if prescale_gradients else "gradient_predivide_factor"
        value, other = "true" if prescale_gradients else f"{factor:g}", "zero_optimization.reduce_scatter"
        what = f"{name} ({value}) cannot be combined with {other} in zero_optimization.stage {stage}"
        about = [name, other, "zero_optimization.stage"]
        yield refuse(what, f"remove {name}, or set {other} to false", about)
