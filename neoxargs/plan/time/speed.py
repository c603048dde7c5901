"""Estimates the step time and its components from data sheets; nothing is measured.

Sources: Chowdhery et al. 2022 (arXiv:2204.02311, appendix B) for the model's operations; Narayanan et al. 2021
(arXiv:2104.04473, sections 2.2 and 3.2) for the pipeline bubble and communication volumes; Rajbhandari et al. 2020
(arXiv:1910.02054, section 7) for those of ZeRO. The time of kernels is in roofline.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from neoxargs.base.record import Record, replace
from neoxargs.config.config import Config
from neoxargs.facts.batch import sequences_per_batch
from neoxargs.facts.batch_sizes import BatchSizes
from neoxargs.facts.context import uses_ring
from neoxargs.facts.gradient_sum import BYTES, bucket_elements
from neoxargs.facts.layer_kinds import has_attention, layer_kind
from neoxargs.facts.layout import Layout
from neoxargs.facts.model import flops_per_token
from neoxargs.facts.muon import flops, muon_matrices
from neoxargs.facts.sequence_lengths import PHASES, SequenceLengths
from neoxargs.facts.trained import is_frozen
from neoxargs.hosts.device_table import Device
from neoxargs.plan.given.assumptions import CONFIGURED, SINGLE, Assumptions
from neoxargs.plan.memory.activation_sizes import ActivationSizes
from neoxargs.plan.memory.activations import selectively_recomputed
from neoxargs.plan.memory.stages import Stage
from neoxargs.plan.memory.states import ModelStates, optimizer_bytes_per_parameter
from neoxargs.plan.memory.weights import first_uses
from neoxargs.plan.time.communication import (
    ContextMessages,
    Messages,
    Operator,
    bytes_sent,
    context_messages,
    expert_messages,
    pipeline_messages,
    router_messages,
    tensor_messages,
)
from neoxargs.plan.time.roofline import Rates, layer_time, loss_time

#: Kernels of a layer, forward and backward, with those that add its gradients to sums in fp32.
KERNELS = 80


class CommunicationVolume(Record):
    """Bytes that a rank of the largest stage sends in one step."""

    tensor: int
    pipe: int
    """Activations sent to the next stage, and gradients sent to the one before."""
    data: int
    experts: int
    """Tokens sent to the ranks of their experts, and outputs sent back."""
    context: int
    """Heads exchanged for positions in attention, and back."""
    host: int
    """Between device and host memory, for offloading."""


class Speed(Record):
    """Seconds of one step by component, and the sizes that they were computed from."""

    flops_per_token: float
    compute: float
    bubble: float
    tensor: float
    pipe: float
    data: float
    experts: float
    context: float
    optimizer: float
    lost: float
    """What runs on several devices lose besides: measured, not modelled."""
    volume: CommunicationVolume
    tokens: int
    """Tokens in one step, over all ranks."""
    ranks: int
    train_iters: int
    sizes: BatchSizes
    first_step: float | None = None
    """Seconds of a step with the first batch of a ramp."""
    lengths: SequenceLengths | None = None
    """Of the sequences, if they change."""
    shares: Mapping[int, float] = {}
    """Length of sequences -> the time of a step with them, as a share of that of a step with whole samples."""

    @property
    def step(self) -> float:
        communication = self.tensor + self.pipe + self.data + self.experts + self.context
        return self.compute + self.bubble + communication + self.optimizer + self.lost

    @property
    def components(self) -> dict[str, float]:
        """Return the seconds of a step by what they are spent on."""
        return {
            "compute": self.compute, "pipeline bubble": self.bubble, "tensor communication": self.tensor,
            "pipeline communication": self.pipe, "data communication": self.data,
            "expert communication": self.experts, "context communication": self.context,
            "optimizer": self.optimizer, "other losses": self.lost,
        }  # fmt: skip

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
        return self.between(self.sizes, self.train_iters)

    def between(self, sizes: BatchSizes, end: int) -> float:
        """Return the seconds of the iterations up to `end`. sizes: of those from its own position on."""
        if self.lengths is None:
            return self._with_whole_samples(sizes, end)
        stages = self.lengths.stages(sizes, end)
        ends = [*(first for first, _ in stages[1:]), end]
        return sum(
            self.shares[length] * self._with_whole_samples(sizes.resumed(first, sizes.samples_after(first)), last)
            for (first, length), last in zip(stages, ends, strict=False)
        )

    def _with_whole_samples(self, sizes: BatchSizes, end: int) -> float:
        if self.first_step is None:
            return self.step * (end - sizes.iteration)
        slope = (self.step - self.first_step) / (self.sizes.last - self.sizes.first)
        left = sizes.iterations_by_size(end)
        return sum(count * (self.step - slope * (self.sizes.last - size)) for size, count in left.items())


def estimate_speed(
    sizes: ActivationSizes,
    rows: int,
    stages: list[Stage],
    device: Device,
    slots: int,
    tensor_together: int | None = None,
) -> Speed:
    """Return the estimated speed. rows: of the padded vocabulary. slots: devices per host.

    tensor_together: the fewest ranks of a tensor parallel group on a host; None if hosts cut no group that fits on one.
    Groups that span hosts communicate over the network.
    """
    config, assumed = sizes.config, sizes.assumed
    layout, batches = Layout.of(config), config.batch.gradient_accumulation_steps
    times = [_stage_time(rows, stage, sizes, device) for stage in stages]
    # the others wait for the slowest stage; a micro batch passes all of them
    compute, fill = batches * max(times), sum(times) - max(times)
    collectives = [tensor_messages(sizes, stage, rows) for stage in stages]
    exchanges = [(expert_messages(sizes, stage), router_messages(sizes, stage)) for stage in stages]
    attended = [context_messages(sizes, stage) for stage in stages]
    states = ModelStates(config, max(stages, key=lambda stage: stage.parameters), assumed=assumed)
    sent = _communication_volume(sizes, stages, states, collectives, exchanges, attended)
    links = _Links(device, slots, tensor_together or min(layout.tensor, slots), layout, assumed)
    tensor = batches * max(_time(messages, layout.tensor, links.tensor, assumed) for messages in collectives)
    divided = config.parallel.moe_expert_parallel_size
    exchanging = batches * max(
        _time(tokens, divided, links.experts(divided), assumed)
        + _time(routed, layout.context, links.experts(layout.context), assumed)
        for tokens, routed in exchanges
    )
    heads = sizes.other_heads
    ring = layout.context // heads
    context = batches * max(
        _time(sent_by.heads, heads, links.experts(heads), assumed)
        + _time(sent_by.all_ranks, layout.context, links.experts(layout.context), assumed)
        + max(0.0, _time(sent_by.ring, ring, links.ring, assumed) - _hides(stage, sizes, device))
        for sent_by, stage in zip(attended, stages, strict=True)
    )
    speed = Speed(
        flops_per_token=flops_per_token(config, rows),
        compute=compute,
        bubble=fill + (tensor + exchanging + context) * (layout.pipe - 1) / batches,
        tensor=tensor,
        pipe=batches * _bytes(pipeline_messages(sizes, stages[0]), "send", "recv") / links.pipe,
        data=_exposed(states, batches, compute, links.data),
        experts=exchanging,
        context=context,
        optimizer=_optimizer(states, device, sent) + max(_newton_schulz(stage, states, device) for stage in stages),
        lost=0.0,
        volume=sent,
        tokens=sequences_per_batch(config) * config.shape.seq_length,
        ranks=layout.ranks,
        train_iters=config.training.train_iters,
        sizes=BatchSizes.of(config.get),
    )
    share = assumed.slowdown - 1 if layout.ranks > 1 and device.kind == "cuda" else 0.0
    first_step = None
    if speed.sizes.changes:
        fewest = max(1, batches * speed.sizes.first // speed.sizes.last)
        part = fewest / batches
        less = {name: part * getattr(speed, name) for name in ("compute", "tensor", "pipe", "experts", "context")}
        less["data"] = _exposed(states, fewest, less["compute"], links.data)
        first_step = (1 + share) * replace(speed, **less).step
    speed = replace(speed, lost=share * speed.step, first_step=first_step)
    lengths = SequenceLengths.of(config.get)
    if not lengths.changes:
        return speed
    shares = {}
    for _, length in lengths.begins:
        cut = ActivationSizes(_cut(config, length), device.kind, assumed)
        shares[length] = estimate_speed(cut, rows, stages, device, slots, tensor_together).step / speed.step
    return replace(speed, lengths=lengths, shares=shares)


def _cut(config: Config, length: int) -> Config:
    """Return a configuration with samples of this length, and as many tokens in a micro batch."""
    pieces, source = config.shape.seq_length // length, config.source("seq_length")
    micro, total = config.batch.train_micro_batch_size_per_gpu, config.batch.train_batch_size
    values = {
        "seq_length": length, "train_micro_batch_size_per_gpu": micro * pieces, "train_batch_size": total * pieces,
        PHASES: None,
    }  # fmt: skip
    return config.with_values(values, source)


def _stage_time(rows: int, stage: Stage, sizes: ActivationSizes, device: Device) -> float:
    """Seconds of one micro batch on a rank of this stage, forward and backward."""
    kinds = Counter(layer_kind(sizes.config, layer) for layer in stage.layers)
    first = {layer_kind(sizes.config, layer): layer for layer in reversed(stage.layers)}
    layers = sum(count * _layer_time(first[kind], sizes, device) for kind, count in kinds.items())
    return layers + (loss_time(sizes, rows // sizes.tensor, device).total if stage.last else 0.0)


def _hides(stage: Stage, sizes: ActivationSizes, device: Device) -> float:
    """Seconds of messages between context parallel ranks behind which a stage computes, in one micro batch.

    In a ring, the next keys and values arrive during attention to those before.
    """
    if not uses_ring(sizes.config):
        return 0.0
    return sum(layer_time(sizes, device, layer)[1].attention for layer in stage.layers)


def _layer_time(layer: int, sizes: ActivationSizes, device: Device) -> float:
    """Seconds of a layer, forward and backward, recomputation included: at least those that the host needs for it."""
    forward, both = layer_time(sizes, device, layer)
    passes = 4 / 3 if sizes.config.recompute.checkpoint_activations is True else 1
    host = passes * KERNELS * sizes.assumed.kernel if device.kind == "cuda" else 0.0
    return max(host, both.total + _recomputation(forward.total, layer, sizes, device))


def _recomputation(forward: float, layer: int, sizes: ActivationSizes, device: Device) -> float:
    """Seconds of recomputing a layer: its forward pass (Chen et al. 2016, arXiv:1604.06174).

    Selective recomputation reads and writes as much as it computes again.
    """
    chosen = sizes.config.recompute.checkpoint_activations
    if chosen is True:
        return forward
    if not has_attention(sizes.config, layer):
        return 0.0
    return 2 * selectively_recomputed(sizes) / (device.bandwidth * sizes.assumed.bandwidth) if chosen else 0.0


class _Links(Record):
    """Rates of collectives: bytes per second in one direction, per rank."""

    device: Device
    slots: int
    tensor_together: int
    layout: Layout
    assumed: Assumptions

    @property
    def tensor(self) -> float:
        return self._rate(self.layout.tensor > self.tensor_together, self.tensor_together)

    @property
    def data(self) -> float:
        ranks = self.layout.tensor * self.layout.with_same_weights
        return self._rate(ranks > self.slots, self.slots // self.layout.tensor)

    @property
    def ring(self) -> float:
        """A context parallel rank sends to the next one, which may be on another host."""
        return self._rate(self.layout.tensor * self.layout.context > self.slots, 1)

    def experts(self, ranks: int) -> float:
        """The rate of an exchange between this many consecutive data parallel ranks."""
        return self._rate(self.layout.tensor * ranks > self.slots, self.slots // self.layout.tensor)

    @property
    def pipe(self) -> float:
        """A stage sends to the next one's rank of the same position."""
        return self._rate(self.layout.ranks > self.slots, 1)

    def _rate(self, spans_hosts: bool, together: int) -> float:
        """The rate of a group with `together` ranks on a host.

        A ring that crosses hosts enters and leaves each host once, and NCCL makes one through each port.
        """
        inside = self.device.neighbours * self.assumed.link
        if not spans_hosts:
            return inside
        share = self.assumed.link if self.assumed.link_hosts == CONFIGURED else self.assumed.link_hosts
        return min(inside, self.device.network * share * max(1, min(together, self.slots)))


def _time(messages: Messages, ranks: int, rate: float, assumed: Assumptions) -> float:
    """Seconds of the collectives of one micro batch among this number of ranks."""
    return bytes_sent(messages, ranks) / rate + messages.total() * assumed.latency


def _bytes(messages: Messages, *operators: Operator) -> int:
    """Bytes of the messages with one of these operators."""
    return sum(size * count for (operator, size), count in messages.items() if operator in operators)


def _waits(states: ModelStates, batches: int) -> float:
    """Seconds until the messages with gradients start: one for each bucket that stages 1 and 2 reduce."""
    if states.zero_stage not in (1, 2) or states.data_ranks == 1:
        return 0.0
    size = states.config.zero_optimization.reduce_bucket_size
    if states.gradient_sum.way == "buckets":
        size = bucket_elements(size, states.data_ranks)
    buckets = -(-states.trained // max(1, size))
    return buckets * (batches if states.gradient_sum.every_micro_batch else 1) * states.assumed.latency


def _exposed(states: ModelStates, batches: int, compute: float, rate: float) -> float:
    """Seconds of communicating weights and gradients that computation does not hide. rate: in bytes per second.

    ZeRO-3 fetches weights and reduces gradients during every micro batch. Other gradients are reduced during the
    backward pass, two thirds of the computation, of the last or of every micro batch, or after it; weights are gathered
    after the step.
    """
    share, reduction = states.assumed.overlap, states.gradient_sum
    gradients, weights = (sent / rate for sent in _sent_by_replicas(states, batches))
    gradients += _waits(states, batches)
    if states.zero_stage == 3:
        return max(0.0, gradients + weights - share * compute) if reduction.overlaps else gradients + weights
    hidden = share * compute * 2 / 3 / (1 if reduction.every_micro_batch else batches) if reduction.overlaps else 0.0
    return weights + max(0.0, gradients - hidden)


def bubble_share(config: Config) -> float:
    """Return the share of a step that a stage waits: (p - 1) / (m + p - 1), with p stages and m micro batches."""
    pipe, batches = Layout.of(config).pipe, config.batch.gradient_accumulation_steps
    return (pipe - 1) / (batches + pipe - 1)


def _communication_volume(
    sizes: ActivationSizes,
    stages: list[Stage],
    states: ModelStates,
    collectives: list[Messages],
    exchanges: list[tuple[Messages, Messages]],
    attended: list[ContextMessages],
) -> CommunicationVolume:
    """Return the volumes of a step. collectives, exchanges, attended: those of a micro batch in tensor, expert
    and context groups.
    """
    batches = sizes.config.batch.gradient_accumulation_steps
    divided = sizes.config.parallel.moe_expert_parallel_size
    return CommunicationVolume(
        tensor=int(batches * max(bytes_sent(messages, sizes.tensor) for messages in collectives)),
        pipe=batches * max(_bytes(pipeline_messages(sizes, stage), "send") for stage in stages),
        data=int(sum(_sent_by_replicas(states, batches))),
        experts=int(
            batches
            * max(bytes_sent(tokens, divided) + bytes_sent(routed, sizes.context) for tokens, routed in exchanges)
        ),
        context=int(batches * max(messages.sent(sizes) for messages in attended)),
        # gradients in fp32 to the host, and weights back
        host=states.partition * (SINGLE + states.number_size) if states.offloaded else 0,
    )


def _sent_by_replicas(states: ModelStates, batches: int) -> tuple[float, float]:
    """Return the bytes of reducing gradients and of gathering weights in a step.

    ZeRO gathers weights once, and stage 3 twice for each micro batch.
    """
    sent = sum(parameters * (ranks - 1) / ranks for parameters, ranks in states.partitioned_over)
    reduction = states.gradient_sum
    gradients = sent * BYTES[reduction.dtype] * reduction.passes * (batches if reduction.every_micro_batch else 1)
    gathers = 2 * batches if states.zero_stage == 3 else min(states.zero_stage, 1)
    return gradients, sent * states.number_size * gathers


def _optimizer(states: ModelStates, device: Device, sent: CommunicationVolume) -> float:
    assumed = states.assumed
    if states.offloaded:
        read_and_written = 2 * states.partition * (optimizer_bytes_per_parameter(states) + SINGLE)
        swapped = read_and_written if states.on_disk else 0
        moved = sent.host / (assumed.host_link * 1e9) + swapped / (assumed.disk_link * 1e9)
        return moved + states.partition / assumed.cpu_adam
    # Plain SGD without master weights reads weight and gradient, and writes the weight.
    traffic = assumed.step_traffic if optimizer_bytes_per_parameter(states) else 3 * states.number_size
    return states.partition * traffic / (device.bandwidth * assumed.bandwidth)


def _newton_schulz(stage: Stage, states: ModelStates, device: Device) -> float:
    """Seconds of Muon's iterations, which compute in fp32, without gathering the matrices; those of recurrent layers
    are not counted.

    Every rank that has a part of a matrix computes all of it: with ZeRO-3 and tensor parallelism each rank all of them,
    and with ZeRO-1 and 2 about one more than its share.
    """
    config = states.config
    if (config.optimizer.type or "").lower() != "muon" or is_frozen(config):
        return 0.0
    params, parallel = config.optimizer_params, config.parallel
    by_tensor = 1 if config.moe.enable_expert_tensor_parallelism else parallel.model_parallel_size
    layers = [layer for layer in first_uses(config, stage.layers) if has_attention(config, layer)]
    found = [each for layer in layers for each in muon_matrices(config, layer)]
    count = sum(each.number for each in found) or 1
    operations = 0.0
    for each in found:
        own = flops(each, params.ns_method == "gram", params.ns_steps)
        operations += own / (parallel.moe_expert_parallel_size * by_tensor if each.of_experts else 1)
    share = min(1.0, 1 / states.data_ranks + 1 / count) if states.zero_stage in (1, 2) else 1.0
    return share * operations / Rates.of(device, SINGLE, config.shape.seq_length, states.assumed).products
