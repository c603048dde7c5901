"""Bytes of weights, gradients and optimizer state on one rank, and of DeepSpeed's buffers for them.

Partitioning by ZeRO follows Rajbhandari et al. 2020 (arXiv:1910.02054, section 5), who count 2 + 2 + 12 bytes per
parameter for Adam in mixed precision; offloading follows Ren et al. 2021 ("ZeRO-Offload", arXiv:2101.06840). The
buffers are those of `runtime/zero` and `runtime/bf16_optimizer` in deepspeed 0.19.
"""

from __future__ import annotations

from functools import cached_property

from neoxargs.base.record import Record
from neoxargs.config.config import Config
from neoxargs.facts.gradient_sum import GradientSum, gradient_sum
from neoxargs.facts.layout import Layout
from neoxargs.facts.optimizers import accumulates_in_fp32, moments
from neoxargs.plan.given.assumptions import ALLREDUCE_BUCKET, DEFAULT, HALF, SINGLE, Assumptions
from neoxargs.plan.memory.stages import Stage


class ModelStates(Record):
    """The settings of a configuration that determine the model states of one pipeline stage."""

    config: Config
    stage: Stage
    ours: bool = True
    """Whether train.py runs the configuration: in 16 bits, it partitions optimizer state even with ZeRO stage 0. With
    stage 3 it builds the model within `deepspeed.zero.Init`."""
    assumed: Assumptions = DEFAULT

    @cached_property
    def parameters(self) -> int:
        return self.stage.parameters

    @cached_property
    def trained(self) -> int:
        """Number of parameters with a gradient and optimizer state."""
        return self.stage.trained

    @cached_property
    def number_size(self) -> int:
        """Bytes per weight in the forward pass."""
        return SINGLE if self.config.precision.precision == "fp32" else HALF

    @cached_property
    def zero_stage(self) -> int:
        """The ZeRO stage in effect: in 16 bits train.py partitions optimizer state even with stage 0."""
        stage: int = self.config.zero_optimization.stage
        if stage == 0 and self.number_size == HALF and (self.pipelined or self.ours) and self.assumed.partitioned:
            return 1
        return stage

    @cached_property
    def pipelined(self) -> bool:
        return self.config.parallel.pipe_parallel_size >= 1

    @cached_property
    def data_ranks(self) -> int:
        """Number of data parallel ranks, among which ZeRO partitions."""
        return Layout.of(self.config).with_same_weights

    @cached_property
    def partition(self) -> int:
        """Number of parameters whose optimizer state is on this rank."""
        if not self.zero_stage:
            return self.trained
        return sum(-(-parameters // ranks) for parameters, ranks in self.partitioned_over)

    @cached_property
    def weights_partition(self) -> int:
        """Number of parameters that are on this rank under ZeRO-3, trained or frozen."""
        return self.partition + -(-(self.parameters - self.trained) // self.data_ranks)

    @cached_property
    def partitioned_over(self) -> list[tuple[int, int]]:
        """Trained parameters, and the number of data parallel ranks with the same ones; experts may be divided."""
        divided, experts = self.config.parallel.moe_expert_parallel_size, self.stage.of_experts
        if divided == 1 or not experts or self.trained < self.parameters:
            return [(self.trained, self.data_ranks)]
        return [(self.trained - experts, self.data_ranks), (experts, self.data_ranks // divided)]

    @cached_property
    def accumulates_in_fp32(self) -> bool:
        """Whether gradients are accumulated in fp32 although the weights are bf16."""
        return accumulates_in_fp32(
            bf16=self.config.precision.precision == "bfloat16",
            micro_batches=self.config.batch.gradient_accumulation_steps if self.ours else 1,
            chosen=self.config.data_types.grad_accum_dtype,
            offloaded=self.offloaded,
            optimizer=self.config.optimizer.type or "",
        )

    @cached_property
    def has_bf16_optimizer(self) -> bool:
        """Whether DeepSpeed's bf16 optimizer runs, which accumulates all gradients in fp32, not partitioned."""
        return self.accumulates_in_fp32 and self.zero_stage == 1 and not self.offloaded

    @cached_property
    def gradient_sum(self) -> GradientSum:
        """How gradients are summed over data parallel ranks."""
        return gradient_sum(self.config, self.ours)

    @cached_property
    def offloaded(self) -> bool:
        """Whether optimizer state is in host memory or on NVMe; without ZeRO, offload_optimizer has no effect."""
        return self.zero_stage >= 1 and self.config.offload_optimizer.device != "none"

    @cached_property
    def offloaded_parameters(self) -> int:
        """Number of parameters whose optimizer state is offloaded: `ratio` of this rank's."""
        return int(self.partition * self.config.offload_optimizer.ratio) if self.offloaded else 0

    @cached_property
    def on_disk(self) -> bool:
        """Whether optimizer state is on NVMe; the host then holds one sub-group at a time."""
        return self.offloaded and self.config.offload_optimizer.device == "nvme"

    @cached_property
    def weights_offloaded(self) -> bool:
        return self.zero_stage == 3 and self.config.offload_param.device != "none"


def weights(states: ModelStates) -> int:
    """Bytes of weights on the device between steps."""
    if states.assumed.weight_bytes >= 0 and not states.weights_offloaded:
        held = states.weights_partition if states.zero_stage == 3 else states.parameters
        return int(held * states.assumed.weight_bytes)
    if states.zero_stage < 3:
        return states.parameters * states.number_size
    return 0 if states.weights_offloaded else states.weights_partition * states.number_size


def gathered_weights(states: ModelStates) -> int:
    """Bytes of the full weights that ZeRO-3 has gathered: of the current layers and of prefetched ones."""
    if states.zero_stage < 3:
        return 0
    options = states.config.zero_optimization
    largest = states.stage.largest // states.config.parallel.model_parallel_size
    # At least the weight in use and what is prefetched meanwhile, however small the limit is.
    alive = max(options.stage3_max_live_parameters, largest + options.stage3_prefetch_bucket_size)
    return min(states.parameters, alive) * states.number_size


def gradients(states: ModelStates) -> int:
    """Bytes of gradients, from the first backward pass to the step."""
    if states.assumed.gradient_bytes >= 0 and not states.offloaded:
        return int((states.partition if states.zero_stage >= 2 else states.trained) * states.assumed.gradient_bytes)
    if states.has_bf16_optimizer:
        # Reduced in buckets, a gradient in bf16 is freed as soon as it is added to the sum in fp32.
        in_bf16 = min(states.stage.largest, states.trained) if states.gradient_sum.way == "buckets" else states.trained
        return states.trained * SINGLE + in_bf16 * HALF
    if states.zero_stage >= 2:
        size = SINGLE if states.accumulates_in_fp32 else states.number_size
        return 0 if states.offloaded else states.partition * size
    return states.trained * states.number_size


def optimizer_state(states: ModelStates) -> int:
    """Bytes of fp32 master weights and moments on the device."""
    return (states.partition - states.offloaded_parameters) * optimizer_bytes_per_parameter(states)


def optimizer_bytes_per_parameter(states: ModelStates) -> int:
    """Bytes of optimizer state per parameter."""
    if states.assumed.optimizer_bytes >= 0:
        return int(states.assumed.optimizer_bytes)
    # weights that are fp32 and not partitioned are their own master weights
    master = SINGLE if states.zero_stage or states.number_size == HALF else 0
    return master + moments(states.config) * SINGLE


def buckets(states: ModelStates) -> int:
    """Bytes of the buffers in which gradients are reduced: `reduce_bucket_size` elements, twice with overlap.

    Stages 1 and 2 allocate them for a backward pass and free them after it; the pipeline engine after its last one.
    """
    options = states.config.zero_optimization
    if states.assumed.bucket >= 0:
        return int(states.assumed.bucket) * states.number_size
    if states.has_bf16_optimizer:
        return 0
    if not states.zero_stage:
        return min(states.trained, ALLREDUCE_BUCKET) * states.number_size if states.data_ranks > 1 else 0
    if not options.contiguous_gradients:
        return 0
    # DeepSpeed's own default: overlap_comm is on for stage 3 only
    overlapped = options.overlap_comm if options.overlap_comm is not None else states.zero_stage == 3
    buffers = 2 if overlapped and not states.pipelined else 1
    bucket = options.reduce_bucket_size
    if states.zero_stage == 3:
        bucket = min(bucket, states.trained)
    return buffers * bucket * states.number_size


def step_buffers(states: ModelStates) -> int:
    """Bytes that the step needs in addition: this rank's reduced gradients, and their copy in fp32."""
    if states.assumed.step_bytes >= 0 and not states.offloaded:
        return int(states.partition * states.assumed.step_bytes)
    if states.has_bf16_optimizer:  # which all-reduces a copy, unless gradients are reduced as they are
        return states.trained * HALF if states.data_ranks > 1 and states.gradient_sum.dtype != "fp32" else 0
    if states.offloaded:
        return 0
    if states.zero_stage == 3:
        return min(states.partition, states.config.zero_optimization.sub_group_size) * SINGLE
    if states.zero_stage:
        return states.partition * (SINGLE + (states.number_size if states.zero_stage == 1 else 0))
    return states.trained * SINGLE if states.number_size == HALF else 0


def host_memory(states: ModelStates) -> int:
    """Bytes in host memory for one rank: offloaded states, with their gradients in fp32.

    Of states on NVMe, the buffers for swapping (`runtime/swap_tensor/optimizer_utils.py`), and `max_in_cpu`.
    """
    options, total = states.config, 0
    if states.on_disk:
        sub_group = min(states.partition, options.zero_optimization.sub_group_size)
        total += options.offload_optimizer.buffer_count * sub_group * SINGLE
    elif states.offloaded:
        total += states.offloaded_parameters * (optimizer_bytes_per_parameter(states) + SINGLE)
    if states.weights_offloaded:
        on_disk = options.offload_param.device == "nvme"
        held = states.weights_partition
        in_memory = min(held, options.offload_param.max_in_cpu) if on_disk else held
        total += in_memory * states.number_size
    return total


def pinned_memory(states: ModelStates) -> int:
    """Bytes of pinned host memory: 16-bit copies of gradients or weights, and buffers for weights on NVMe."""
    options = states.config.offload_param
    weights_on_disk = states.weights_offloaded and options.device == "nvme"
    copies = states.partition if states.offloaded or (states.weights_offloaded and not weights_on_disk) else 0
    buffers = options.buffer_count * options.buffer_size if weights_on_disk else 0
    return (copies + buffers) * states.number_size + accumulated_on_host(states)


def accumulated_on_host(states: ModelStates) -> int:
    """Bytes of the buffers, one per weight, in which stages 1 and 2 accumulate gradients of several micro batches."""
    several = states.config.batch.gradient_accumulation_steps > 1 and not states.pipelined
    in_memory = states.offloaded and states.zero_stage < 3
    return states.partition * states.number_size if in_memory and several else 0


def lost_to_pinning(states: ModelStates) -> int:
    """Bytes of pinned host memory that hold nothing.

    torch rounds each pinned buffer up to a power of two (`ATen/core/CachingHostAllocator.h`), and keeps the freed ones:
    those of single weights, which ZeRO-3 copies to one buffer when all have been created.
    """
    if not states.assumed.pinned_rounding:
        return 0
    config, buffers, single = states.config, list[int](), 0.0
    copies, rounded = states.partition * states.number_size, states.assumed.pinned_tensors
    if states.offloaded and not states.on_disk and config.offload_optimizer.pin_memory:
        if states.zero_stage == 3:
            group, offloaded = config.zero_optimization.sub_group_size, states.offloaded_parameters
            buffers += [group * SINGLE] * (offloaded // group) + [offloaded % group * SINGLE, copies]
        else:
            buffers += [states.partition * SINGLE] * 2 + [copies]
            single += accumulated_on_host(states) * (rounded - 1)
    if states.weights_offloaded and config.offload_param.device == "cpu":
        held = states.weights_partition * states.number_size
        buffers.append(held)
        single += held * rounded if config.offload_param.pin_memory else 0
    return sum((1 << (size - 1).bit_length()) - size for size in buffers if size) + int(single)


def saved_copies(states: ModelStates) -> int:
    """Bytes of the copies that `save_in_background` writes: of the rank that writes most, with the model's weights.

    ZeRO-3 saves the weights in the optimizer's files only, which have the master weights, also with `no_save_optim`.
    """
    options = states.config.checkpoint
    if not (options.save and options.save_in_background):
        return 0
    optimizer = states.partition * optimizer_bytes_per_parameter(states)
    if states.zero_stage == 3:
        return optimizer
    return states.trained * states.number_size + (0 if options.no_save_optim else optimizer)


def construction_peak(states: ModelStates) -> tuple[int, int]:
    """Return the peak bytes (on the device, on the host) of construction, before there is optimizer state.

    The pipeline engine builds its stage in fp32 and converts it on the device. The plain engine builds each weight on
    the device in its final type, but in host memory with `use_cpu_initialization` or in another script. ZeRO-3
    partitions each weight when it is created, unless a script builds the model outside `deepspeed.zero.Init`: then each
    rank first holds its tensor parallel shard of the full model.
    """
    initialised = states.stage.largest * SINGLE  # the weight that is being initialised, before sharding
    full = states.parameters * SINGLE
    if states.pipelined:
        return full + initialised, full
    if states.zero_stage == 3:
        held = weights(states) + initialised if states.ours else states.parameters * states.number_size
        return held, host_memory(states) + (0 if states.ours else full)
    on_host = not states.ours or states.config.init.use_cpu_initialization
    return states.parameters * states.number_size + initialised, full if on_host else 0
