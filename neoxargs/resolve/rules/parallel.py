"""How the ranks divide the model between them, and whether they can."""

from __future__ import annotations

from neoxargs.problems import Problem
from neoxargs.resolve.rules.divisibility import divided, multiple
from neoxargs.resolve.rules.rule import Contradiction, Refusal, check, derive
from neoxargs.sizes.layout import ranks_of_replica, stages


@derive
def model_parallel_size(model_parallel_size: int | None) -> int | None:
    """0 divides no matrix, like 1"""
    return None if model_parallel_size is None else max(model_parallel_size, 1)


@derive
def world_size(world_size: int | None, gpus: int) -> int:
    """one process per GPU"""
    if world_size not in (None, gpus):
        sentence = f"world_size ({world_size}) is not the number of processes that the run gets ({gpus})"
        raise Contradiction(sentence, "leave world_size out: there is one process per GPU")
    return gpus


@derive
def global_num_gpus(global_num_gpus: int | None, gpus: int) -> int:
    """the GPUs of all machines together"""
    if global_num_gpus not in (None, gpus):
        raise Contradiction(
            f"global_num_gpus ({global_num_gpus}) is not the number of GPUs that the run gets ({gpus})",
            "leave global_num_gpus out: hostfile, include, num_nodes and num_gpus determine it",
        )
    return gpus


@derive
def is_pipe_parallel(pipe_parallel_size: int) -> bool:
    """pipe_parallel_size of 1 or more runs DeepSpeed's pipeline engine, 0 its plain engine"""
    return pipe_parallel_size >= 1


@check
def gpus_hold_whole_copies(gpus: int, model_parallel_size: int, pipe_parallel_size: int) -> Refusal:
    """Every copy of the model takes model_parallel_size x pipe_parallel_size GPUs."""
    copy = ranks_of_replica(model_parallel_size, pipe_parallel_size)
    if gpus % copy == 0:
        return None
    size = f"model_parallel_size ({model_parallel_size}) x pipe_parallel_size ({stages(pipe_parallel_size)}) = {copy}"
    if gpus < copy:
        return f"one copy of the model takes {size} GPUs, and the run gets {gpus}", f"use {copy} GPUs or smaller sizes"
    return f"the number of GPUs ({gpus}) must be a multiple of {size}", f"{gpus % copy} would be idle"


@check
def heads_divide_between_tensor_ranks(num_attention_heads: int, model_parallel_size: int, hidden_size: int) -> Refusal:
    """Every tensor parallel rank computes whole attention heads."""
    heads = num_attention_heads
    return divided("num_attention_heads", heads, "model_parallel_size", model_parallel_size, hidden_size)


@check
def kv_heads_divide_between_tensor_ranks(
    num_kv_heads: int, num_attention_heads: int, model_parallel_size: int
) -> Refusal:
    """Every tensor parallel rank holds whole key and value heads."""
    if num_kv_heads == num_attention_heads:
        return None
    return divided("num_kv_heads", num_kv_heads, "model_parallel_size", model_parallel_size, num_attention_heads)


@check
def hidden_divides_between_tensor_ranks(
    hidden_size: int, model_parallel_size: int, num_attention_heads: int
) -> Refusal:
    """Every tensor parallel rank holds an equal slice of each layer."""
    return divided("hidden_size", hidden_size, "model_parallel_size", model_parallel_size, num_attention_heads)


@check
def every_stage_has_a_layer(num_layers: int, pipe_parallel_size: int) -> Refusal:
    """A pipeline stage without a layer would only pass activations on."""
    if num_layers >= pipe_parallel_size:
        return None
    sentence = f"num_layers ({num_layers}) must be at least pipe_parallel_size ({pipe_parallel_size})"
    return sentence, f"write pipe_parallel_size: {num_layers} or less"


@check
def zero_and_pipeline(zero_optimization__stage: object, pipe_parallel_size: int) -> Refusal:
    """DeepSpeed's pipeline engine needs whole gradients on every rank, which ZeRO 2 and 3 do not keep."""
    if zero_optimization__stage not in (2, 3) or pipe_parallel_size == 0:
        return None
    return (
        f"zero_optimization.stage ({zero_optimization__stage}) and pipe_parallel_size ({pipe_parallel_size}) exclude "
        "each other: the pipeline engine works with ZeRO stages 0 and 1",
        "write zero_optimization: {stage: 1}, or pipe_parallel_size: 0 for the plain engine",
    )


@derive
def pipeline__pipe_partitioned(sequence_parallel: bool) -> bool | None:
    """with sequence_parallel each rank sends the shard that it has"""
    return False if sequence_parallel else None


@derive
def pipeline__grad_partitioned(sequence_parallel: bool) -> bool | None:
    """with sequence_parallel each rank sends the shard that it has"""
    return False if sequence_parallel else None


@check
def shards_are_sent_as_they_are(
    sequence_parallel: bool, pipeline__pipe_partitioned: bool, pipeline__grad_partitioned: bool
) -> Refusal:
    """What is divided already is not divided again on its way through the pipeline."""
    if not sequence_parallel:
        return None
    for name, value in (("pipe", pipeline__pipe_partitioned), ("grad", pipeline__grad_partitioned)):
        if value:
            return f"pipeline.{name}_partitioned (true) excludes sequence_parallel", "remove it; shards are sent"
    return None


@check
def sequences_divide_between_tensor_ranks(
    sequence_parallel: bool, model_parallel_size: int, seq_length: int
) -> Problem | Refusal:
    """Sequence parallelism divides the sequence between the tensor parallel ranks."""
    if not sequence_parallel:
        return None
    if model_parallel_size == 1:
        sentence = "sequence_parallel has no effect: model_parallel_size is 1, so no ranks share a sequence"
        return Problem(sentence, hint="remove sequence_parallel", severity="warning")
    return multiple("seq_length", seq_length, "model_parallel_size", model_parallel_size)
