"""Weights, gradients and optimizer state of one rank, and DeepSpeed's buffers around them, in bytes.

What ZeRO divides among D data parallel ranks: Rajbhandari et al. 2020 ("ZeRO", arXiv:1910.02054, section 5), which
counts 2 + 2 + 12 bytes a parameter for Adam in mixed precision. What moves to the host: Ren et al. 2021
("ZeRO-Offload", arXiv:2101.06840). The buffers are those of deepspeed 0.19's `runtime/zero` and `bf16_optimizer`.
"""

from __future__ import annotations

from dataclasses import dataclass

from neoxargs.resolve.config import Config
from neoxargs.sizes.layout import Layout
from neoxargs.sizes.optimizer_state import moments
from neoxargs.tools.plan.assumptions import ALLREDUCE_BUCKET, HALF, SINGLE
from neoxargs.tools.plan.memory.stages import Stage


@dataclass(frozen=True)
class ModelStates:
    """How one stage of a configuration keeps its parameters."""

    config: Config
    stage: Stage

    @property
    def parameters(self) -> int:
        return self.stage.parameters

    @property
    def number_size(self) -> int:
        """Bytes of one weight as the model computes with it."""
        return SINGLE if self.config.precision.precision == "fp32" else HALF

    @property
    def zero_stage(self) -> int:
        """The stage of ZeRO that runs. In half precision the pipeline divides optimizer state anyway."""
        stage: int = self.config.zero_optimization.stage
        if stage == 0 and self.number_size == HALF and self.pipelined:
            return 1
        return stage

    @property
    def pipelined(self) -> bool:
        return self.config.parallel.pipe_parallel_size >= 1

    @property
    def data_ranks(self) -> int:
        """Data parallel ranks, which share what ZeRO divides."""
        return Layout.of(self.config).data

    @property
    def partition(self) -> int:
        """Parameters whose state this rank keeps."""
        return -(-self.parameters // self.data_ranks) if self.zero_stage else self.parameters

    @property
    def summed_in_fp32(self) -> bool:
        """DeepSpeed's bf16 optimizer, which keeps every gradient in fp32, undivided."""
        wanted = self.config.data_types.grad_accum_dtype == "fp32"
        return wanted and self.config.precision.precision == "bfloat16" and self.zero_stage == 1 and not self.offloaded

    @property
    def offloaded(self) -> bool:
        """Optimizer state in host memory, or on disk behind it; without ZeRO the section has no effect."""
        return self.zero_stage >= 1 and self.config.offload_optimizer.device != "none"

    @property
    def offloaded_parameters(self) -> int:
        """Parameters whose state is offloaded: all of this rank's, or the `ratio` of them."""
        return int(self.partition * self.config.offload_optimizer.ratio) if self.offloaded else 0

    @property
    def on_disk(self) -> bool:
        """Optimizer state on NVMe, from where the host has a piece at a time."""
        return self.offloaded and self.config.offload_optimizer.device == "nvme"

    @property
    def weights_offloaded(self) -> bool:
        return self.zero_stage == 3 and self.config.offload_param.device != "none"


def weights(states: ModelStates) -> int:
    """Between steps, on the device."""
    if states.zero_stage < 3:
        return states.parameters * states.number_size
    return 0 if states.weights_offloaded else states.partition * states.number_size


def gathered_weights(states: ModelStates) -> int:
    """ZeRO-3: whole weights of the layers at work and of those fetched ahead."""
    if states.zero_stage < 3:
        return 0
    options = states.config.zero_optimization
    largest = states.stage.largest // states.config.parallel.model_parallel_size
    alive = max(options.stage3_max_live_parameters, largest + options.stage3_prefetch_bucket_size)
    return min(states.parameters, alive) * states.number_size


def gradients(states: ModelStates) -> int:
    """From the first backward pass to the step."""
    if states.summed_in_fp32:
        return states.parameters * (SINGLE + HALF)
    if states.zero_stage >= 2:
        return 0 if states.offloaded else states.partition * states.number_size
    return states.parameters * states.number_size


def optimizer_state(states: ModelStates) -> int:
    """fp32 master weights (not where the weights themselves are fp32 and undivided) and moments."""
    return (states.partition - states.offloaded_parameters) * optimizer_bytes_per_parameter(states)


def optimizer_bytes_per_parameter(states: ModelStates) -> int:
    """Bytes for one parameter."""
    master = SINGLE if states.zero_stage or states.number_size == HALF else 0
    return master + moments(states.config) * SINGLE


def buckets(states: ModelStates) -> int:
    """What gradients are sent in: one buffer of `reduce_bucket_size` numbers, two where sending overlaps."""
    options = states.config.zero_optimization
    if states.summed_in_fp32:
        return 0
    if not states.zero_stage:
        return min(states.parameters, ALLREDUCE_BUCKET) * states.number_size if states.data_ranks > 1 else 0
    if not options.contiguous_gradients:
        return 0
    overlapped = options.overlap_comm if options.overlap_comm is not None else states.zero_stage == 3
    buffers = 2 if overlapped and not states.pipelined else 1
    bucket = options.reduce_bucket_size
    if states.zero_stage == 3:
        bucket = min(bucket, states.parameters)
    return buffers * bucket * states.number_size


def step_buffers(states: ModelStates) -> int:
    """What the step adds: this rank's gradients summed up, and once more in fp32."""
    if states.offloaded or states.summed_in_fp32:
        return 0
    if states.zero_stage == 3:
        return min(states.partition, states.config.zero_optimization.sub_group_size) * SINGLE
    if states.zero_stage:
        return states.partition * (SINGLE + (states.number_size if states.zero_stage == 1 else 0))
    return states.parameters * SINGLE if states.number_size == HALF else 0


def host_memory(states: ModelStates) -> int:
    """In the memory of the host, for one rank: what is offloaded, with its gradients in fp32.

    Of what is on NVMe, the buffers it passes through (`runtime/swap_tensor/optimizer_utils.py`), and `max_in_cpu`.
    """
    options, total = states.config, 0
    if states.on_disk:
        piece = min(states.partition, options.zero_optimization.sub_group_size)
        total += options.offload_optimizer.buffer_count * piece * SINGLE
    elif states.offloaded:
        total += states.offloaded_parameters * (optimizer_bytes_per_parameter(states) + SINGLE)
    if states.weights_offloaded:
        on_disk = options.offload_param.device == "nvme"
        in_memory = min(states.partition, options.offload_param.max_in_cpu) if on_disk else states.partition
        total += in_memory * states.number_size
    return total


def pinned_memory(states: ModelStates) -> int:
    """Of the host's memory, locked for fast copies: 16-bit gradients on their way, and buffers for weights on NVMe."""
    options = states.config.offload_param
    weights_on_disk = states.weights_offloaded and options.device == "nvme"
    copies = states.partition if states.offloaded or (states.weights_offloaded and not weights_on_disk) else 0
    buffers = options.buffer_count * options.buffer_size if weights_on_disk else 0
    return (copies + buffers) * states.number_size


def construction_peak(states: ModelStates, zero_init: bool) -> tuple[int, int]:
    """(device, host) at the peak of construction, before there is any optimizer state.

    A pipeline makes its stage in fp32 and moves it to the device before it is rounded; the plain engine rounds it in
    the host's memory. ZeRO-3 divides every weight as it is made, unless a script makes the model outside
    `deepspeed.zero_stage.Init`: then each rank first holds its slice of the whole model, whatever the stage.
    """
    drawn = states.stage.largest * SINGLE
    whole = states.parameters * SINGLE
    if states.pipelined:
        return whole + drawn, whole
    if states.zero_stage == 3:
        held = weights(states) if zero_init else states.parameters * states.number_size
        return held + (drawn if zero_init else 0), host_memory(states) + (0 if zero_init else whole)
    return states.parameters * states.number_size + drawn, whole
