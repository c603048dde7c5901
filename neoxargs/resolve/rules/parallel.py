"""Parallelism: whether the model and its layers can be split across the ranks as configured."""

from __future__ import annotations

import math
from collections.abc import Sequence

from neoxargs.base.problems import listed
from neoxargs.base.record import replace
from neoxargs.facts.context import ALL_TO_ALL, AUTO, HYBRID, IN_A_RING, RING, missing_in_ring, parts_of_sequence
from neoxargs.facts.layer_kinds import ATTENTION_BLOCK, RECURRENT
from neoxargs.facts.layout import BEFORE, is_counted, layer_pattern, ranks_of_replica, stages
from neoxargs.facts.optimizers import is_onebit
from neoxargs.resolve.rules.rule import Contradiction, Findings, check, derive, derives, refuse, true_names, warn
from neoxargs.resolve.rules.shared_findings import MOST_PROPOSED, around, divisible_by, multiple_of, nearest


@derive
def model_parallel_size(model_parallel_size: int | None) -> int | None:
    """0 means no tensor parallelism, the same as 1"""
    return None if model_parallel_size is None else max(model_parallel_size, 1)


@derive
def world_size(world_size: int | None, gpus: int) -> int:
    """one process per GPU"""
    return gpus


@derives("global_num_gpus")
def global_num_gpus_equals_gpus(global_num_gpus: int | None, gpus: int) -> int:
    """the number of GPUs on all hosts together

    GPT-NeoX computes the number of replicas and the batch size from global_num_gpus. If the run has a different number
    of GPUs, the batch size differs from the file's, or DeepSpeed's assertion about the batch size stops every rank.

        global_num_gpus: 4
    """
    if global_num_gpus not in (None, gpus):
        raise Contradiction(
            f"global_num_gpus ({global_num_gpus}) must equal the run's number of GPUs ({gpus})",
            "remove global_num_gpus; hostfile, include, num_nodes and num_gpus determine the number of GPUs",
        )
    return gpus


@derive
def is_pipe_parallel(pipe_parallel_size: int) -> bool:
    """pipe_parallel_size of 1 or more selects DeepSpeed's pipeline engine, 0 its plain engine"""
    return pipe_parallel_size >= 1


@check
def gpus_hold_whole_replicas(
    gpus: int, model_parallel_size: int, pipe_parallel_size: int, context_parallel_size: int
) -> Findings:
    """A replica of the model occupies model_parallel_size x pipe_parallel_size GPUs, times context_parallel_size. With
    too few GPUs, or some left over, the process groups cannot be built: the launcher starts all processes, and an
    assertion stops each of them.

        pipe_parallel_size: 3
    """
    replica = ranks_of_replica(model_parallel_size, pipe_parallel_size, context_parallel_size)
    if gpus % replica == 0:
        return
    sizes = {"model_parallel_size": model_parallel_size, "pipe_parallel_size": stages(pipe_parallel_size)}
    sizes |= {"context_parallel_size": context_parallel_size} if context_parallel_size > 1 else {}
    factors = " x ".join(f"{name} ({size})" for name, size in sizes.items())
    if gpus < replica:
        what = f"one model replica needs {factors} = {replica} GPUs, but the run has {gpus}"
        yield refuse(what, f"use {replica} GPUs, or reduce {listed([*sizes])}", about=[*sizes])
    else:
        what = f"the number of GPUs ({gpus}) must be a multiple of {factors} = {replica}"
        yield refuse(what, f"use {nearest(gpus, replica)} GPUs, or change {listed([*sizes])}", about=[*sizes])


@check
def tensor_parallel_divides_heads(
    num_attention_heads: int, model_parallel_size: int, hidden_size: int, attention_config: Sequence[str]
) -> Findings:
    """Every tensor parallel rank must compute the same number of attention heads. Otherwise an assertion in GPT-NeoX
    stops every rank when it builds the first layer.

        num_attention_heads: 2
        model_parallel_size: 4
    """
    heads, size = num_attention_heads, model_parallel_size
    if not all(kind in RECURRENT for kind in attention_config):
        yield from divisible_by("num_attention_heads", heads, "model_parallel_size", size, hidden_size)


@check
def tensor_parallel_divides_kv_heads(num_kv_heads: int, num_attention_heads: int, model_parallel_size: int) -> Findings:
    """Every tensor parallel rank must hold the same number of key and value heads; they are not replicated across
    ranks. Otherwise every rank stops when it builds the first layer.

        model_parallel_size: 4
        num_kv_heads: 2
    """
    if num_kv_heads == num_attention_heads:
        return
    name, size = "model_parallel_size", model_parallel_size
    for finding in divisible_by("num_kv_heads", num_kv_heads, name, size, num_attention_heads):
        # `size` key and value heads are enough: one for each rank.
        also = f", or num_kv_heads to {size}" if num_attention_heads % size == 0 else ""
        yield replace(finding, advice=finding.advice + also)


@check
def tensor_parallel_divides_hidden_size(
    hidden_size: int, model_parallel_size: int, num_attention_heads: int
) -> Findings:
    """Every tensor parallel rank holds an equal shard of each matrix. If hidden_size is not divisible by
    model_parallel_size, Megatron's `ensure_divisibility` stops every rank when it builds the first layer.

        num_attention_heads: 8
        hidden_size: 60
        model_parallel_size: 8
    """
    yield from divisible_by("hidden_size", hidden_size, "model_parallel_size", model_parallel_size, num_attention_heads)


@check
def tensor_parallel_divides_padded_vocab_size(padded_vocab_size: int | None, model_parallel_size: int) -> Findings:
    """The rows of the embedding are partitioned across the tensor parallel ranks. With a remainder, the ranks would
    hold different numbers of rows, and each would look up tokens in the wrong rows.

        padded_vocab_size: 515
        model_parallel_size: 2
    """
    if padded_vocab_size:
        yield from multiple_of("padded_vocab_size", padded_vocab_size, "model_parallel_size", model_parallel_size)


@check
def pipe_partition_method_is_known(pipe_partition_method: str, pipe_parallel_size: int) -> Findings:
    """DeepSpeed distributes the layers by `uniform`, by `parameters`, or by a regular expression for the names of their
    classes. Any other value ends every rank in an error when the pipeline is built.

        pipe_parallel_size: 2
        pipe_partition_method: balanced
    """
    method = pipe_partition_method
    if pipe_parallel_size and method.lower() not in ("uniform", "parameters") and not layer_pattern(method):
        yield refuse(
            f"pipe_partition_method ({method}) must be uniform, parameters or type:REGEX with a valid regular "
            "expression",
            "set it to type:transformer|mlp, which counts the transformer layers",
            about=["pipe_partition_method"],
        )


@check
def pipeline_stages_at_most_num_layers(
    num_layers: int, pipe_parallel_size: int, pipe_partition_method: str, no_weight_tying: bool, train_impl: str
) -> Findings:
    """Pipeline parallelism distributes the layers over the stages. With more stages than layers, some stages have no
    weights, and DeepSpeed's optimizer stops there because its list of parameters is empty. The embedding, and the
    output that is tied to it, are layers if pipe_partition_method counts them (type:transformer|embedding).

        pipe_parallel_size: 8
        gradient_accumulation_steps: 32
    """
    layers = num_layers
    if is_counted(ATTENTION_BLOCK, pipe_partition_method) and is_counted(BEFORE[0], pipe_partition_method):
        layers += 1 if no_weight_tying or train_impl == "rm" else 2
    if layers < pipe_parallel_size:
        counted = f" plus {layers - num_layers} for the embeddings" * (layers > num_layers)
        what = f"num_layers ({num_layers}){counted} must be at least pipe_parallel_size ({pipe_parallel_size})"
        yield refuse(what, f"set pipe_parallel_size to {layers} or less", ["num_layers", "pipe_parallel_size"])


@check
def pipeline_excludes_zero_2(zero_optimization__stage: object, pipe_parallel_size: int) -> Findings:
    """DeepSpeed's pipeline engine accumulates gradients over micro batches and needs unpartitioned gradients. ZeRO
    stages 2 and 3 partition gradients, so an assertion stops every rank when it builds the engine.

        zero_optimization: {stage: 2}
        pipe_parallel_size: 1
    """
    if zero_optimization__stage in (2, 3) and pipe_parallel_size != 0:
        yield refuse(
            f"zero_optimization.stage ({zero_optimization__stage}) and pipe_parallel_size ({pipe_parallel_size}) "
            "cannot be combined: the pipeline engine supports ZeRO stages 0 and 1",
            "set zero_optimization.stage to 1, or pipe_parallel_size to 0 to train without the pipeline engine",
        )


@derive
def pipeline__pipe_partitioned(sequence_parallel: bool) -> bool | None:
    """with sequence_parallel, each rank sends only its shard"""
    return False if sequence_parallel else None


@derive
def pipeline__grad_partitioned(sequence_parallel: bool) -> bool | None:
    """with sequence_parallel, each rank sends only its shard"""
    return False if sequence_parallel else None


@check
def sequence_parallel_excludes_pipe_partitioned(
    sequence_parallel: bool, pipeline__pipe_partitioned: bool, pipeline__grad_partitioned: bool
) -> Findings:
    """With sequence_parallel, each tensor parallel rank holds a different shard of the sequence. DeepSpeed's
    partitioned sends assume that all of them hold the same tensor: the next stage would assemble parts of different
    shards.

        sequence_parallel: true
        model_parallel_size: 2
        pipeline: {pipe_partitioned: true}
    """
    if sequence_parallel and (pipeline__pipe_partitioned or pipeline__grad_partitioned):
        parameter = f"pipeline.{'pipe' if pipeline__pipe_partitioned else 'grad'}_partitioned"
        what = f"{parameter} (true) and sequence_parallel cannot be combined"
        advice = f"remove {parameter}; with sequence_parallel, each rank already sends only its shard"
        yield refuse(what, advice, about=["sequence_parallel", parameter])


@check
def pipe_partitioned_equals_grad_partitioned(
    pipeline__pipe_partitioned: bool,
    pipeline__grad_partitioned: bool,
    model_parallel_size: int,
    pipe_parallel_size: int,
) -> Findings:
    """A stage of DeepSpeed's pipeline that receives whole activations waits for whole gradients, and one that receives
    shards waits for shards. If only activations are sent whole, all ranks wait forever in the first step; if only
    gradients are, the first step fails.

        model_parallel_size: 2
        pipe_parallel_size: 2
        pipeline: {pipe_partitioned: false}
    """
    activations, gradients = pipeline__pipe_partitioned, pipeline__grad_partitioned
    if activations != gradients and model_parallel_size != 1 and pipe_parallel_size >= 2:
        off, on = ("grad", "pipe") if activations else ("pipe", "grad")
        yield refuse(
            f"pipeline.{off}_partitioned (false) must equal pipeline.{on}_partitioned (true)",
            f"set pipeline.{on}_partitioned to false too, or remove pipeline.{off}_partitioned",
            about=["pipeline.pipe_partitioned", "pipeline.grad_partitioned"],
        )


@check
def sequence_parallel_needs_tensor_parallel(sequence_parallel: bool, model_parallel_size: int) -> Findings:
    """sequence_parallel splits the sequence across the tensor parallel ranks of a replica. With only one tensor
    parallel rank, nothing is split, and activations take as much memory as without sequence_parallel.

        sequence_parallel: true
    """
    if sequence_parallel and model_parallel_size <= 1:
        what = "sequence_parallel has no effect: model_parallel_size is 1"
        yield warn(what, "remove sequence_parallel, or set model_parallel_size to 2 or more")


@check
def tensor_parallel_divides_seq_length(sequence_parallel: bool, model_parallel_size: int, seq_length: int) -> Findings:
    """With sequence_parallel, every tensor parallel rank holds an equal shard of the sequence. With a remainder, the
    shards cannot be gathered, and all ranks stop or hang in the first forward pass.

        sequence_parallel: true
        model_parallel_size: 4
        seq_length: 30
    """
    if sequence_parallel:
        yield from multiple_of("seq_length", seq_length, "model_parallel_size", model_parallel_size)


@check
def context_parallel_divides_seq_length(
    context_parallel_size: int, context_parallel_style: str, sequence_parallel: bool, model_parallel_size: int,
    seq_length: int, num_attention_heads: int,
) -> Findings:  # fmt: skip
    """Every context parallel rank holds an equal part of the positions, of two chunks in a ring, which
    sequence_parallel divides further among the tensor parallel ranks. With a remainder, ranks would exchange parts of
    different sizes and hang.

        context_parallel_size: 2
        seq_length: 15
    """
    tensor = model_parallel_size if sequence_parallel else 1
    if context_parallel_size == 1 or seq_length % tensor:  # the latter is another rule's problem
        return
    parts = parts_of_sequence(context_parallel_style, context_parallel_size, tensor)
    heads = num_attention_heads // model_parallel_size if context_parallel_style == ALL_TO_ALL else 0

    def fits(size: int) -> bool:
        unit = math.prod(parts_of_sequence(context_parallel_style, size, tensor).values())
        return seq_length % unit == 0 and heads % size == 0

    for finding in multiple_of("seq_length", seq_length, " x ".join(parts), math.prod(parts.values())):
        sizes = around(context_parallel_size, list(filter(fits, range(1, MOST_PROPOSED + 1))))
        advice = f"{finding.advice}, or context_parallel_size to {listed(map(str, sizes))}"
        about = ["seq_length", *(name for name in parts if name != "2"), *["context_parallel_style"] * ("2" in parts)]
        yield replace(finding, advice=advice, about=(*about, *["sequence_parallel"] * (tensor > 1)))


@check
def context_ranks_can_compute_attention(
    context_parallel_style: str, context_parallel_size: int, model_parallel_size: int, num_attention_heads: int,
    attention_dropout: float, pos_emb: str, attention_backend: str, attention_config: Sequence[str],
) -> Findings:  # fmt: skip
    """With all_to_all, every context parallel rank has an equal part of the heads that its tensor parallel rank holds.
    In a ring, it has all of them, but random numbers, learned biases and blocks would have to go around as well.

        num_attention_heads: 2
        context_parallel_size: 4
        attention_dropout: 0.1
    """
    heads = num_attention_heads // model_parallel_size
    if context_parallel_size == 1 or all(kind in RECURRENT for kind in attention_config):
        return
    if num_attention_heads % model_parallel_size:  # another rule's problem
        return
    asked = {
        "attention_dropout": attention_dropout, "pos_emb": pos_emb, "attention_backend": attention_backend,
        "attention_config": attention_config,
    }  # fmt: skip
    missing, about = missing_in_ring(asked.__getitem__), ["context_parallel_size", "context_parallel_style"]
    names = list(dict.fromkeys(missing.values()))
    others = listed([f"{name} to {IN_A_RING[name]}" for name in names], "and")
    ring = context_parallel_style in {RING, HYBRID}
    if ring and missing:
        what = f"context_parallel_style ({context_parallel_style}) cannot compute {listed([*missing], 'and')}"
        other_style = "" if heads % context_parallel_size else "context_parallel_style to all_to_all, or "
        yield refuse(what, f"set {other_style}{others}", about=[*about, *names])
    elif not ring and (context_parallel_style != AUTO or missing):
        name = "num_attention_heads" if model_parallel_size == 1 else "the number of heads per tensor parallel rank"
        for finding in divisible_by(name, heads, "context_parallel_size", context_parallel_size):
            advice = f"{finding.advice}, or context_parallel_style to ring{f' and {others}' if others else ''}"
            yield replace(finding, advice=advice, about=(*about, "num_attention_heads"))


@check
def context_parallel_excludes(
    context_parallel_size: int, optimizer__type: str, compile_layers: bool, eval_tasks: Sequence[str] | None,
    eval_prompts: Sequence[str] | None, eval_prompts_file: str | None,
) -> Findings:  # fmt: skip
    """Context parallel ranks exchange their positions within attention, and sum the losses of their tokens. What needs
    whole sequences elsewhere would compute another result from a part of each, without an error, or wait for ever.

        context_parallel_size: 2
        num_attention_heads: 4
        compile_layers: true
    """
    if context_parallel_size == 1:
        return
    names = true_names(
        optimizer__type=is_onebit(optimizer__type), compile_layers=compile_layers, eval_tasks=eval_tasks,
        eval_prompts=eval_prompts, eval_prompts_file=eval_prompts_file,
    )  # fmt: skip
    if names:
        shown = [f"{name} ({optimizer__type})" if name == "optimizer.type" else name for name in names]
        yield refuse(
            f"context_parallel_size ({context_parallel_size}) cannot be combined with {listed(shown, 'and')}",
            f"remove context_parallel_size, or {listed(names, 'and')}",
            about=["context_parallel_size", *names],
        )


@check
def pipeline_stages_are_mostly_busy(pipe_parallel_size: int, gradient_accumulation_steps: int) -> Findings:
    """A step of a pipeline with p stages and m micro batches takes as long as m + p - 1 micro batches, and every stage
    waits in p - 1 of them. gradient_accumulation_steps is the number of micro batches of a step: with few of them, most
    of the time is lost (https://github.com/icloud-ecnu/Espresso/issues/3,
    https://github.com/ISEEKYAN/verl_megatron_practice/issues/9).

        num_layers: 8
        pipe_parallel_size: 8
        gradient_accumulation_steps: 2
    """
    stages, micro_batches = pipe_parallel_size, gradient_accumulation_steps
    idle = (stages - 1) / (micro_batches + stages - 1) if stages > 1 else 0
    if idle > 0.5:
        yield warn(
            f"the pipeline stages wait {idle:.0%} of the time: pipe_parallel_size ({stages}) with "
            f"gradient_accumulation_steps ({micro_batches})",
            f"set gradient_accumulation_steps to {4 * stages} or more, or use fewer stages",
        )
