"""How long a step takes and where the time goes: an estimate from data sheets, not a measurement.

Work: Chowdhery et al. 2022 (arXiv:2204.02311, appendix B) for the model's operations. Bubble and message sizes:
Narayanan et al. 2021 (arXiv:2104.04473, sections 2.2 and 3.2); ZeRO's: Rajbhandari et al. 2020 (arXiv:1910.02054,
section 7). CommunicationVolume of tensor parallelism wait; those of data parallelism overlap with nothing here.
"""

from __future__ import annotations

from dataclasses import dataclass

from neoxargs.resolve.config import Config
from neoxargs.sizes.layout import Layout
from neoxargs.sizes.model import flops_per_token
from neoxargs.tools.plan import assumptions as assumed
from neoxargs.tools.plan.devices import Device
from neoxargs.tools.plan.memory.activations import ActivationSizes
from neoxargs.tools.plan.memory.stages import Stage
from neoxargs.tools.plan.memory.states import ModelStates, optimizer_bytes_per_parameter


@dataclass(frozen=True)
class CommunicationVolume:
    """What one rank of the fullest stage sends, in bytes for one step."""

    tensor: int
    pipe: int
    data: int
    host: int
    """Between device and host, where something is offloaded."""


@dataclass(frozen=True)
class Speed:
    """Seconds of one step, by what they go to."""

    flops_per_token: float
    compute: float
    bubble: float
    tensor: float
    pipe: float
    data: float
    optimizer: float
    messages: CommunicationVolume
    tokens: int
    """In one step, of all ranks."""
    ranks: int
    train_iters: int

    @property
    def step(self) -> float:
        return self.compute + self.bubble + self.tensor + self.pipe + self.data + self.optimizer

    @property
    def tflops_per_device(self) -> float:
        """The model's operations only: what is computed a second time does not count."""
        return self.flops_per_token * self.tokens / self.step / self.ranks / 1e12

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.step

    @property
    def total(self) -> float:
        """Seconds of the whole training, without evaluation and checkpoints."""
        return self.step * self.train_iters


def estimate_speed(config: Config, rows: int, held: list[Stage], device: Device, slots: int) -> Speed:
    """slots: devices on one host, which decides what has to cross the network."""
    layout, sizes = Layout.of(config), ActivationSizes(config, device.kind)
    batches = config.batch.gradient_accumulation_steps
    tokens = config.batch.train_batch_size * config.shape.seq_length
    work = flops_per_token(config, rows) * _with_recomputation(config)
    peak = device.single if sizes.number_size == assumed.SINGLE else device.half
    slowest = max(len(stage.layers) for stage in held) * len(held) / config.shape.num_layers
    compute = work * tokens * slowest / layout.ranks / (peak * _efficiency(sizes))
    sent, states = _communication_volume(config, held, sizes), _fullest(config, held)
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
        messages=sent,
        tokens=tokens,
        ranks=layout.ranks,
        train_iters=config.training.train_iters,
    )


def bubble_share(config: Config) -> float:
    """Part of the time that stages wait for each other: (p - 1) / (m + p - 1) with m micro batches."""
    pipe, batches = Layout.of(config).pipe, config.batch.gradient_accumulation_steps
    return (pipe - 1) / (batches + pipe - 1)


def _efficiency(sizes: ActivationSizes) -> float:
    tokens = sizes.tokens
    return assumed.EFFICIENCY[sizes.number_size] * tokens / (tokens + assumed.TOKENS_AT_HALF_RATE[sizes.kind])


def _with_recomputation(config: Config) -> float:
    """Forward once more: 4/3 of the three passes' worth (Chen et al. 2016, arXiv:1604.06174)."""
    return 4 / 3 if config.recompute.checkpoint_activations else 1.0


def _communication_volume(config: Config, held: list[Stage], sizes: ActivationSizes) -> CommunicationVolume:
    layout, batches = Layout.of(config), config.batch.gradient_accumulation_steps
    states = _fullest(config, held)
    layers = max(len(stage.layers) for stage in held)
    around = 2 * (layout.tensor - 1) / layout.tensor  # a ring sends each number so often
    return CommunicationVolume(
        tensor=int(layers * _sums(config) * around * sizes.hidden * batches),
        pipe=_pipe_volume(config, sizes) * batches if layout.pipe > 1 else 0,
        data=_data_volume(states, batches),
        host=_host_volume(states),
    )


def _sums(config: Config) -> float:
    """What tensor parallel ranks sum of the residual stream in one layer; a gather is half of a sum, a scatter too.

    Two inputs enter a layer's regions, and one sum leaves them where attention and feed-forward are side by side.
    """
    leaving = 1 if config.attention.gpt_j_residual else 2
    if config.parallel.sequence_parallel:
        forward, backward = 1 + leaving / 2, 2 + leaving / 2  # what enters is gathered a second time
    else:
        forward, backward = leaving, 2
    recompute = config.recompute
    if not recompute.checkpoint_activations:
        return forward + backward
    return 2 * forward + backward + (0.5 if recompute.partition_activations else 0)  # a shared checkpoint is gathered


def _pipe_volume(config: Config, sizes: ActivationSizes) -> int:
    """An activation and its gradient, of which a tensor parallel rank sends its share unless it is told not to."""
    sharded, pipeline = config.parallel.sequence_parallel, config.pipeline
    shared = (sharded or pipeline.pipe_partitioned, sharded or pipeline.grad_partitioned)
    return sum(sizes.hidden // (sizes.tensor if is_shared else 1) for is_shared in shared)


def _data_volume(states: ModelStates, batches: int) -> int:
    """Gradients are summed and weights handed back: twice the model a step, once more with ZeRO-3 and every batch."""
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


def _fullest(config: Config, held: list[Stage]) -> ModelStates:
    return ModelStates(config, max(held, key=lambda stage: stage.parameters))


def _rate(device: Device, one_host: bool) -> float:
    return (device.neighbours if one_host else device.network) * assumed.LINK_EFFICIENCY
