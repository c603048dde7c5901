"""Estimates the step time and its components from data sheets; nothing is measured.

Sources: Chowdhery et al. 2022 (arXiv:2204.02311, appendix B) for the model's operations; Narayanan et al. 2021
(arXiv:2104.04473, sections 2.2 and 3.2) for the pipeline bubble and communication volumes; Rajbhandari et al. 2020
(arXiv:1910.02054, section 7) for those of ZeRO. No communication is assumed to overlap with computation.
"""

from __future__ import annotations

from dataclasses import dataclass

from neoxargs.resolve.config import Config
from neoxargs.sizes.layout import Layout
from neoxargs.sizes.model import flops_per_token
from neoxargs.tools.plan import assumptions as assumed
from neoxargs.tools.plan.devices import Device
from neoxargs.tools.plan.memory.activations import ActivationSizes, selectively_recomputed
from neoxargs.tools.plan.memory.stages import Stage
from neoxargs.tools.plan.memory.states import ModelStates, optimizer_bytes_per_parameter


@dataclass(frozen=True)
class CommunicationVolume:
    """Bytes that a rank of the largest stage sends in one step."""

    tensor: int
    pipe: int
    data: int
    host: int
    """Between device and host memory, for offloading."""


@dataclass(frozen=True)
class Speed:
    """Seconds of one step by component, and the sizes that they were computed from."""

    flops_per_token: float
    compute: float
    bubble: float
    tensor: float
    pipe: float
    data: float
    optimizer: float
    volume: CommunicationVolume
    tokens: int
    """In one step, over all ranks."""
    ranks: int
    train_iters: int

    @property
    def step(self) -> float:
        return self.compute + self.bubble + self.tensor + self.pipe + self.data + self.optimizer

    @property
    def tflops_per_device(self) -> float:
        """Model FLOP/s per device in units of 1e12; recomputation is not counted."""
        return self.flops_per_token * self.tokens / self.step / self.ranks / 1e12

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.step

    @property
    def total(self) -> float:
        """Seconds of the whole training run, without evaluation and checkpointing."""
        return self.step * self.train_iters


def estimate_speed(config: Config, rows: int, stages: list[Stage], device: Device, slots: int) -> Speed:
    """Return the estimated speed. rows: of the padded vocabulary. slots: devices per host.

    Groups of more ranks than `slots` communicate over the network.
    """
    layout, sizes = Layout.of(config), ActivationSizes(config, device.kind)
    batches = config.batch.gradient_accumulation_steps
    tokens = config.batch.train_batch_size * config.shape.seq_length
    work = flops_per_token(config, rows) * _with_recomputation(config)
    peak = device.single if sizes.number_size == assumed.SINGLE else device.half
    # largest stage relative to the average one: the others wait for it
    slowest = max(len(stage.layers) for stage in stages) * len(stages) / config.shape.num_layers
    compute = work * tokens * slowest / layout.ranks / (peak * _efficiency(sizes))
    compute += _recomputed_traffic(stages, sizes) * batches / device.bandwidth
    sent, states = _communication_volume(config, stages, sizes), _largest(config, stages)
    inside = _rate(device, layout.tensor <= slots)
    between = _rate(device, layout.data * layout.tensor * layout.pipe <= slots)
    tensor = sent.tensor / inside
    return Speed(
        flops_per_token=flops_per_token(config, rows),
        compute=compute,
        bubble=(compute + tensor) * (layout.pipe - 1) / batches,
        tensor=tensor,
        pipe=sent.pipe / between,
        data=sent.data / between,
        optimizer=_optimizer(states, device, sent),
        volume=sent,
        tokens=tokens,
        ranks=layout.ranks,
        train_iters=config.training.train_iters,
    )


def bubble_share(config: Config) -> float:
    """Return the share of a step that a stage waits: (p - 1) / (m + p - 1), with p stages and m micro batches."""
    pipe, batches = Layout.of(config).pipe, config.batch.gradient_accumulation_steps
    return (pipe - 1) / (batches + pipe - 1)


def _efficiency(sizes: ActivationSizes) -> float:
    tokens = sizes.tokens
    return assumed.EFFICIENCY[sizes.number_size] * tokens / (tokens + assumed.TOKENS_AT_HALF_RATE[sizes.kind])


def _with_recomputation(config: Config) -> float:
    """Return the factor of recomputation: 4/3, for a second forward pass (Chen et al. 2016, arXiv:1604.06174)."""
    return 4 / 3 if config.recompute.checkpoint_activations is True else 1.0


def _recomputed_traffic(stages: list[Stage], sizes: ActivationSizes) -> int:
    """Return the bytes that selective recomputation reads and writes per micro batch, as much as it computes again."""
    return 2 * max(len(stage.layers) for stage in stages) * selectively_recomputed(sizes)


def _communication_volume(config: Config, stages: list[Stage], sizes: ActivationSizes) -> CommunicationVolume:
    layout, batches = Layout.of(config), config.batch.gradient_accumulation_steps
    states = _largest(config, stages)
    layers = max(len(stage.layers) for stage in stages)
    all_reduce = 2 * (layout.tensor - 1) / layout.tensor  # times that a ring all-reduce sends each number
    return CommunicationVolume(
        tensor=int(layers * _all_reduces(config) * all_reduce * sizes.hidden * batches),
        pipe=_pipe_volume(config, sizes) * batches if layout.pipe > 1 else 0,
        data=_data_volume(states, batches),
        host=_host_volume(states),
    )


def _all_reduces(config: Config) -> float:
    """Return the all-reduces of the residual stream per layer and micro batch.

    An all-gather or reduce-scatter counts half. Two inputs enter the tensor parallel regions of a layer; two outputs
    leave them, or one if attention and feed-forward are parallel (`gpt_j_residual`).
    """
    leaving = 1 if config.attention.gpt_j_residual else 2
    if config.parallel.sequence_parallel:
        forward, backward = 1 + leaving / 2, 2 + leaving / 2  # the backward pass gathers the inputs again
    else:
        forward, backward = leaving, 2
    recompute = config.recompute
    if recompute.checkpoint_activations is not True:
        return forward + backward
    return (
        2 * forward + backward + (0.5 if recompute.partition_activations else 0)
    )  # a partitioned checkpoint is gathered


def _pipe_volume(config: Config, sizes: ActivationSizes) -> int:
    """Return the bytes of an activation and its gradient; where they are partitioned, a rank sends its shard only."""
    sharded, pipeline = config.parallel.sequence_parallel, config.pipeline
    partitioned = (sharded or pipeline.pipe_partitioned, sharded or pipeline.grad_partitioned)
    return sum(sizes.hidden // (sizes.tensor if is_partitioned else 1) for is_partitioned in partitioned)


def _data_volume(states: ModelStates, batches: int) -> int:
    """Return the bytes of reducing gradients and gathering weights.

    Twice the model per step; ZeRO-2 reduces gradients for every micro batch, ZeRO-3 sends the model three times for
    each.
    """
    share = (states.data_ranks - 1) / states.data_ranks
    model = share * states.parameters * states.number_size
    if states.zero_stage == 3:
        return int(3 * model * batches)
    return int(model * ((batches if states.zero_stage == 2 else 1) + 1))


def _host_volume(states: ModelStates) -> int:
    if not states.offloaded:
        return 0
    return states.partition * (assumed.SINGLE + states.number_size)


def _optimizer(states: ModelStates, device: Device, sent: CommunicationVolume) -> float:
    if states.offloaded:
        read_and_written = 2 * states.partition * (optimizer_bytes_per_parameter(states) + assumed.SINGLE)
        swapped = read_and_written if states.on_disk else 0
        return sent.host / assumed.HOST_LINK + states.partition / assumed.CPU_ADAM + swapped / assumed.DISK_LINK
    traffic = assumed.STEP_TRAFFIC if optimizer_bytes_per_parameter(states) else 3 * states.number_size
    return states.partition * traffic / device.bandwidth


def _largest(config: Config, stages: list[Stage]) -> ModelStates:
    return ModelStates(config, max(stages, key=lambda stage: stage.parameters))


def _rate(device: Device, one_host: bool) -> float:
    """Bytes per second of a collective within one host, or across hosts."""
    return (device.neighbours if one_host else device.network) * assumed.LINK_EFFICIENCY
