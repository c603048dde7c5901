"""ZeRO in DeepSpeed's JSON: section `zero_optimization` and its inner sections.

Sizes are counted in elements (numbers), not bytes, unless a description says otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from neoxargs.registry import data_file
from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count, Fraction, Natural

if TYPE_CHECKING:
    Stage = int
else:  # a list is a search space: the autotuner runs each experiment with one of them, so code that runs sees an int
    Stage = Literal[0, 1, 2, 3] | list[int]

Device = Literal["none", "cpu", "nvme"]


class ZeroOptimization(Group, origin="DSC", effect="engine", section="zero_optimization"):
    """Which parts of the training state are partitioned among the data parallel ranks, and how."""

    stage: Stage = param(0)
    """What is partitioned across the data parallel ranks: 0 nothing, 1 the optimizer's state, 2 gradients as well, 3
    weights as well. Pipeline parallelism allows 0 and 1. With `autotuning`, a list of stages to try."""

    contiguous_gradients: bool = param(True)
    """Copy gradients into one buffer as the backward pass computes them, which avoids memory fragmentation."""

    reduce_scatter: bool = param(True)
    """Send each rank only the averaged gradients of its partition instead of all of them. Stages 1 and 2."""

    reduce_bucket_size: Count = param(500_000_000)
    """Number of gradient elements that are averaged in one collective operation. A larger bucket is faster; it takes 2
    bytes per element in fp16, and twice as much with `overlap_comm`. For stage 3, about the square of the hidden size
    works best."""

    use_multi_rank_bucket_allreduce: bool = param(True)
    """Average the buckets of all ranks in one all-reduce instead of one reduce per rank; this helps small models on
    many GPUs. Stages 1 and 2."""

    allgather_partitions: bool = param(
        True, effect="none", no_effect_reason="DeepSpeed accepts it but no longer reads it"
    )
    """Formerly chose between an all-gather and one broadcast per rank for updated weights; DeepSpeed now always uses an
    all-gather."""

    allgather_bucket_size: Natural = param(500_000_000)
    """Number of weights that are gathered in one all-gather after a step. Stages 1 and 2."""

    overlap_comm: bool | None = param(None)
    """Average gradients while the backward pass is still running. None: true for stage 3, false for the other
    stages."""

    load_from_fp32_weights: bool = param(True)
    """On resuming, take the optimizer's fp32 weights from its checkpoint; false rebuilds them from the 16-bit weights
    of the model and loses their lower bits."""

    elastic_checkpoint: bool = param(False)
    """Stages 1 and 2: save the optimizer state so that it can be loaded with a different number of data parallel ranks.
    To change anything else, convert the checkpoint to the universal format."""

    sub_group_size: Natural = param(1_000_000_000)
    """Stage 3: number of elements that the optimizer updates at a time. A smaller number needs less memory in the step,
    especially with the optimizer state on NVMe."""

    stage3_prefetch_bucket_size: Natural = param(50_000_000, aliases="prefetch_bucket_size")
    """Stage 3: how many weights to fetch ahead of their use."""

    stage3_param_persistence_threshold: Natural = param(100_000, aliases="param_persistence_threshold")
    """Stage 3: tensors smaller than this are not partitioned, which costs memory and saves communication."""

    stage3_model_persistence_threshold: Natural = param(2**63 - 1, aliases="model_persistence_threshold")
    """Stage 3: upper bound on how many weights `stage3_param_persistence_threshold` may leave unpartitioned in
    total."""

    stage3_max_live_parameters: Natural = param(1_000_000_000, aliases="max_live_parameters")
    """Stage 3: maximum number of gathered weights on a GPU."""

    stage3_max_reuse_distance: Natural = param(1_000_000_000, aliases="max_reuse_distance")
    """Stage 3: keep a gathered weight if it is used again before this many other weights are used. A model with fewer
    weights keeps all of them gathered from the forward to the backward pass, as if they were not partitioned."""

    stage3_gather_16bit_weights_on_model_save: bool = param(
        False,
        aliases=("gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save"),
    )
    """Stage 3: gather the whole model on one rank when it is saved in 16 bits; that rank must have enough memory for
    it."""

    stage3_module_granularity_threshold: int = param(0, aliases="module_granularity_threshold")
    """Stage 3: fetch a module with all its submodules at once if it has fewer weights per submodule than this. 0
    fetches each submodule separately."""

    stage3_use_all_reduce_for_fetch_params: bool = param(False, aliases="use_all_reduce_for_fetch_params")
    """Stage 3: fetch weights by summing zero-padded shards; this communicates more, but copies less on the host."""

    stage3_allgather_sequential: bool = param(False, aliases="allgather_sequential")
    """Stage 3: gather tensors one at a time without a common buffer; slower, with a lower memory peak."""

    ignore_unused_parameters: bool = param(True)
    """Continue if a weight has no gradient; false stops the run. Stages 1 and 2."""

    legacy_stage1: bool = param(
        False,
        effect="not built",
        refused="DeepSpeed removed this implementation in 0.5.9 and now stops with an error",
        instead="set zero_stage: 1, which selects the current implementation",
    )
    """Selects the first implementation of stage 1. DeepSpeed has since removed it, and stops with an error."""

    round_robin_gradients: bool = param(False)
    """Stages 1 and 2 with the optimizer on the CPU: distribute gradients in small pieces so that all ranks copy in
    parallel. Most useful with many micro batches per step."""

    zero_hpz_partition_size: Natural = param(1)
    """Stage 3 (ZeRO++): keep a second copy of the weights partitioned across only this many ranks, usually the GPUs of
    a machine, so that the backward pass does not gather from other machines. 1 turns this off."""

    zero_quantized_weights: bool = param(False)
    """Stage 3 (ZeRO++): fetch weights in 8 bits."""

    zero_quantized_nontrainable_weights: bool = param(False)
    """Stage 3: hold frozen weights in 8 bits, for training small adapters."""

    zero_quantized_gradients: bool = param(False)
    """Stage 3 (ZeRO++): average gradients in 4 bits."""

    mics_shard_size: int = param(-1)
    """Stage 3 (MiCS): partition the training state within groups of this many ranks, so that each group holds all of
    it. -1 turns this off."""

    mics_hierarchical_params_gather: bool = param(False)
    """MiCS: gather weights in two steps, first between machines and then within each machine."""

    memory_efficient_linear: bool = param(True)
    """Stage 3: use a linear layer that does not keep the gathered weight for the backward pass."""

    pipeline_loading_checkpoint: bool = param(False)
    """Stage 3: ranks load their checkpoint files one after another, for hosts without enough memory to load all at
    once."""

    override_module_apply: bool = param(True)
    """Stage 3: let `Module.apply` see unpartitioned weights, as initialisation functions expect."""

    log_trace_cache_warnings: bool = param(False)
    """Stage 3: warn whenever the order in which modules run changes and prefetching has to learn it again."""

    enable_sanity_checks: bool = param(False)
    """Run DeepSpeed's internal consistency checks; slow, for debugging."""

    save_muon_momentum_buffer_in_memory: bool = param(
        False,
        effect="none",
        no_effect_reason="train.py has its own Muon, whose momentum is stored like the states of other optimizers",
    )
    """Stage 3 with Muon and the optimizer's state on NVMe: keep Muon's momentum in memory."""

    cpu_offload: bool | None = param(
        None,
        replaced_by={
            True: {"zero_optimization.offload_optimizer.device": "cpu"},
            False: {},
        },
        to=(),
    )
    """Retired: use `offload_optimizer: {device: cpu}` instead of true."""

    cpu_offload_param: bool | None = param(
        None,
        aliases="cpu_offload_params",
        replaced_by={
            True: {"zero_optimization.offload_param.device": "cpu"},
            False: {},
        },
        to=(),
    )
    """Retired: use `offload_param: {device: cpu}` instead of true."""

    cpu_offload_use_pin_memory: bool | None = param(
        None,
        replaced_by={
            flag: {
                "zero_optimization.offload_param.pin_memory": flag,
                "zero_optimization.offload_optimizer.pin_memory": flag,
            }
            for flag in (True, False)
        },
        to=(),
    )
    """Retired: use `pin_memory` in `offload_param` and in `offload_optimizer`."""


class OffloadParam(Group, origin="DSC", effect="engine", section="zero_optimization.offload_param"):
    """Where ZeRO 3 keeps weights that are not in use."""

    device: Device = param("none")
    """`none` keeps weights on the GPU, `cpu` moves them to host memory, and `nvme` to disk, except partitions smaller
    than 1 MiB or `aio.block_size`, whichever is larger. Stage 3 only."""

    nvme_path: str | None = param(None)
    """Folder on the disk for `device: nvme`; give each machine a local one. Each rank creates a folder in it, which is
    removed when the run ends."""

    buffer_count: Natural = param(5)
    """Number of host buffers that carry weights between disk and GPU."""

    buffer_size: Natural = param(100_000_000)
    """Number of elements in each of the `buffer_count` buffers; the largest weight must fit into one."""

    max_in_cpu: Natural = param(1_000_000_000)
    """With `device: nvme`, the maximum number of weights that are kept in host memory."""

    pin_memory: bool = param(True)
    """Use page-locked (pinned) host memory: copies are faster and overlap with computation, but the memory cannot be
    swapped out."""


class OffloadOptimizer(Group, origin="DSC", effect="engine", section="zero_optimization.offload_optimizer"):
    """Where the optimizer state is stored, and therefore where the optimizer step is computed."""

    device: Device = param("none")
    """`none` keeps the state on the GPU; `cpu` moves it to host memory and `nvme` to disk, except partitions smaller
    than 1 MiB or `aio.block_size`, whichever is larger; both compute the step on the CPU. Stages 1 to 3; `nvme` needs
    3."""

    nvme_path: str | None = param(None)
    """Folder on the disk for `device: nvme`; give each machine a local one. Each rank creates a folder in it, which is
    removed when the run ends."""

    buffer_count: Natural = param(4)
    """Number of host buffers that carry state between disk and CPU; at least the number of tensors that the optimizer
    needs per weight, which is 4 for Adam."""

    pin_memory: bool = param(True)
    """Use page-locked (pinned) host memory: copies are faster and overlap with computation, but the memory cannot be
    swapped out."""

    pipeline_read: bool = param(False)
    """With `device: nvme`, read the next part of the state while the current one is updated."""

    pipeline_write: bool = param(False)
    """With `device: nvme`, write the previous part of the state while the current one is updated."""

    fast_init: bool = param(False)
    """With `device: nvme` and weights on NVMe, initialise the state in bulk at the start of a run, which is faster."""

    ratio: Fraction = param(1.0)
    """Stage 3: fraction of the weights whose step is computed on the CPU; the GPU does the rest."""

    super_offload: bool = param(False)
    """Stage 3: use SuperOffload, a variant for machines whose CPU and GPU share a fast link, such as GH200."""

    cpuadam_cores_perc: Fraction = param(0.8)
    """With `super_offload`, the fraction of CPU cores that compute the step."""


data_file.declare(
    __name__,
    "zero_optimization.zenflow",
    "zero_optimization.zeropp_loco_param",
    "zero_optimization.leaf_module",
)
