"""Model parallelism: how the ranks divide the model."""

from __future__ import annotations

from typing import Literal

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count, Natural


class Parallel(Group, origin="Meg", effect="layout"):
    """Tensor, context, pipeline and sequence parallelism; the remaining ranks are data parallel."""

    pipe_parallel_size: Natural = param(0, megatron="pipeline-model-parallel-size")
    """Number of pipeline stages; each holds consecutive layers. 1 uses the pipeline engine with a single stage. 0 uses
    the plain engine without a pipeline, which ZeRO stages 2 and 3 need."""

    model_parallel_size: Natural = param(1, megatron="tensor-model-parallel-size")
    """Number of tensor parallel ranks; each weight matrix is divided into this many shards. Must divide
    `num_attention_heads`, and should not exceed the number of GPUs in one machine, because every layer communicates. 0
    means 1."""

    context_parallel_size: Count = param(
        1, ours=True, megatron="context-parallel-size", aliases="sequence_parallel_size"
    )
    """Number of ranks among which each sequence is divided: each computes the layers for its part of the positions.
    `context_parallel_style` says how attention sees the others; Mamba and RWKV layers pass their states on. For
    sequences whose activations do not fit on one rank. The results are the same. Twice this number must divide
    `seq_length`, as in Megatron-LM; with `context_parallel_style: all_to_all`, this number.
    `sequence_parallel_size` is DeepSpeed's name. Not the same as `sequence_parallel`, which divides activations
    among the tensor parallel ranks."""

    context_parallel_style: Literal["auto", "all_to_all", "ring", "hybrid"] = param(
        "auto", ours=True, megatron="cp-comm-type"
    )
    """How context parallel ranks compute attention. `all_to_all` (DeepSpeed-Ulysses): each has all positions and a part
    of the heads of its tensor parallel rank, which their number must divide; with fewer key and value heads than ranks,
    it has copies of them. `ring`: each keeps its positions, of which it has two
    parts so that all ranks have the same work, and keys and values go around. It has no attention dropout, learned
    position bias or block-sparse layers. `hybrid`: as many consecutive ranks as can divide the key and
    value heads exchange heads, and such groups are a ring. `auto`: `all_to_all` where ranks can divide the heads, else
    `hybrid` or `ring`, which compute attention once more in the backward pass. The log, `check`
    and `plan` say which and why."""

    pipe_partition_method: str = param("type:transformer|mlp", origin="NeoX")
    """How layers are distributed over pipeline stages: `parameters` balances parameter counts, `uniform` layer counts,
    `type:REGEX` the number of layers whose class name matches the expression. `type:transformer|embedding` also counts
    the embedding, and the output that is tied to it, as Megatron-DeepSpeed does."""

    sequence_parallel: bool = param(False, megatron="sequence-parallel")
    """Also divides, along the sequence, the activations that tensor parallelism does not divide (norms, dropout,
    residuals). Saves activation memory; the results are the same. Has an effect only if `model_parallel_size` is above
    1."""

    moe_expert_parallel_size: Count = param(1, origin="NeoX", megatron="expert-model-parallel-size")
    """Number of consecutive data parallel ranks that divide each layer's experts among themselves. A rank sends its
    tokens to the ranks that hold their experts, and receives the outputs. Must divide `moe_num_experts`, and the number
    of replicas x `context_parallel_size`, whose ranks are data parallel ranks too. The tensor parallel ranks
    (`model_parallel_size`) divide the experts as well."""

    world_size: Count = param(derived=True, origin="NeoX", effect="none", no_effect_reason="it is computed at launch")
    """Number of processes in the run. Computed when the run is launched; setting it has no effect."""

    is_pipe_parallel: bool = param(
        derived=True, origin="NeoX", effect="none", no_effect_reason="it is derived from pipe_parallel_size"
    )
    """True when `pipe_parallel_size` is 1 or more. Computed; setting it has no effect."""

    global_num_gpus: Count = param(derived=True, origin="NeoX", effect="config")
    """Total number of devices on all machines. Computed from the hostfile, `include`, `exclude`, `num_nodes` and
    `num_gpus`; set it only to compute batch sizes for a cluster that this machine cannot see."""
