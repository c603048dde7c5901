"""How the ranks divide the model between them, and whether they can."""

from __future__ import annotations

from neoxargs.resolve.rules.rule import Contradiction, Finding, check, derive, derives, refuse, warn
from neoxargs.resolve.rules.shared_findings import divided, multiple
from neoxargs.sizes.layout import ranks_of_replica, stages


@derive
def model_parallel_size(model_parallel_size: int | None) -> int | None:
    """0 divides no matrix, like 1"""
    return None if model_parallel_size is None else max(model_parallel_size, 1)


@derives("world_size")
def world_size_equals_gpus(world_size: int | None, gpus: int) -> int:
    """one process per GPU

    Every rank waits at its rendezvous until world_size of them have come. With another number than are started, they
    wait until the timeout, half an hour later.

        world_size: 4
    """
    if world_size not in (None, gpus):
        sentence = f"world_size ({world_size}) is not the number of processes that the run gets ({gpus})"
        raise Contradiction(sentence, "leave world_size out: there is one process per GPU")
    return gpus


@derives("global_num_gpus")
def global_num_gpus_equals_gpus(global_num_gpus: int | None, gpus: int) -> int:
    """the GPUs of all machines together

    GPT-NeoX computes the number of replicas and the batch from it. With another number than the run gets, the batch
    is not the one that the file describes, or DeepSpeed's assertion about the batch stops every rank.

        global_num_gpus: 4
    """
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
def gpus_hold_whole_replicas(gpus: int, model_parallel_size: int, pipe_parallel_size: int) -> Finding | None:
    """A replica of the model takes model_parallel_size x pipe_parallel_size GPUs. With too few, or some left over, no
    grid of ranks can be made: the launcher starts all processes, and each stops in an assertion.

        pipe_parallel_size: 3
    """
    copy = ranks_of_replica(model_parallel_size, pipe_parallel_size)
    if gpus % copy == 0:
        return None
    size = f"model_parallel_size ({model_parallel_size}) x pipe_parallel_size ({stages(pipe_parallel_size)}) = {copy}"
    if gpus < copy:
        what = f"one copy of the model takes {size} GPUs, and the run gets {gpus}"
        return refuse(what, f"use {copy} GPUs or smaller sizes")
    return refuse(f"the number of GPUs ({gpus}) must be a multiple of {size}", f"{gpus % copy} would be idle")


@check
def tensor_parallel_divides_heads(
    num_attention_heads: int, model_parallel_size: int, hidden_size: int
) -> Finding | None:
    """Every tensor parallel rank computes whole attention heads, equally many. Otherwise GPT-NeoX stops in an
    assertion on every rank when it builds the first layer.

        num_attention_heads: 2
        model_parallel_size: 4
    """
    heads = num_attention_heads
    return divided("num_attention_heads", heads, "model_parallel_size", model_parallel_size, hidden_size)


@check
def tensor_parallel_divides_kv_heads(
    num_kv_heads: int, num_attention_heads: int, model_parallel_size: int
) -> Finding | None:
    """Every tensor parallel rank holds whole key and value heads, equally many; they are not repeated across ranks.
    Otherwise every rank stops when it builds the first layer.

        model_parallel_size: 4
        num_kv_heads: 2
    """
    if num_kv_heads == num_attention_heads:
        return None
    return divided("num_kv_heads", num_kv_heads, "model_parallel_size", model_parallel_size, num_attention_heads)


@check
def tensor_parallel_divides_hidden_size(
    hidden_size: int, model_parallel_size: int, num_attention_heads: int
) -> Finding | None:
    """Every tensor parallel rank holds an equal slice of each matrix. A hidden_size with a remainder stops every rank
    in Megatron's `ensure_divisibility` when it builds the first layer.

        num_attention_heads: 8
        hidden_size: 60
        model_parallel_size: 8
    """
    return divided("hidden_size", hidden_size, "model_parallel_size", model_parallel_size, num_attention_heads)


@check
def pipeline_stages_at_most_num_layers(num_layers: int, pipe_parallel_size: int) -> Finding | None:
    """A pipeline divides the layers between its stages. With more stages than layers some GPUs have none: they pass
    activations on, hold no weights, and DeepSpeed's optimizer stops on their empty list of parameters.

        pipe_parallel_size: 8
    """
    if num_layers >= pipe_parallel_size:
        return None
    what = f"num_layers ({num_layers}) must be at least pipe_parallel_size ({pipe_parallel_size})"
    return refuse(what, f"write pipe_parallel_size: {num_layers} or less")


@check
def pipeline_excludes_zero_2(zero_optimization__stage: object, pipe_parallel_size: int) -> Finding | None:
    """DeepSpeed's pipeline engine accumulates gradients over micro batches, so each rank needs them whole. ZeRO stages
    2 and 3 partition them; the engine asserts that on every rank when it is built.

        zero_optimization: {stage: 2}
        pipe_parallel_size: 1
    """
    if zero_optimization__stage not in (2, 3) or pipe_parallel_size == 0:
        return None
    return refuse(
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
def sequence_parallel_excludes_pipe_partitioned(
    sequence_parallel: bool, pipeline__pipe_partitioned: bool, pipeline__grad_partitioned: bool
) -> Finding | None:
    """With sequence_parallel each tensor parallel rank has its own shard of the sequence. DeepSpeed's partitioned
    sends assume that all of them hold the same tensor: the next stage would put together parts of different shards.

        sequence_parallel: true
        model_parallel_size: 2
        pipeline: {pipe_partitioned: true}
    """
    if not sequence_parallel:
        return None
    for name, value in (("pipe", pipeline__pipe_partitioned), ("grad", pipeline__grad_partitioned)):
        if value:
            what = f"pipeline.{name}_partitioned (true) excludes sequence_parallel"
            about = ["sequence_parallel", f"pipeline.{name}_partitioned"]
            return refuse(what, "remove it; shards are sent", about)
    return None


@check
def sequence_parallel_needs_tensor_parallel(sequence_parallel: bool, model_parallel_size: int) -> Finding | None:
    """sequence_parallel divides the sequence between the tensor parallel ranks of a replica. With one such rank
    nothing is divided, and activations take as much memory as without it.

        sequence_parallel: true
    """
    if not sequence_parallel or model_parallel_size > 1:
        return None
    what = "sequence_parallel has no effect: model_parallel_size is 1, so no ranks share a sequence"
    return warn(what, "remove sequence_parallel")


@check
def tensor_parallel_divides_seq_length(
    sequence_parallel: bool, model_parallel_size: int, seq_length: int
) -> Finding | None:
    """With sequence_parallel every tensor parallel rank holds an equal shard of the sequence. With a remainder the
    shards cannot be gathered, and all ranks stop or hang in the first forward pass.

        sequence_parallel: true
        model_parallel_size: 4
        seq_length: 30
    """
    return multiple("seq_length", seq_length, "model_parallel_size", model_parallel_size) if sequence_parallel else None
