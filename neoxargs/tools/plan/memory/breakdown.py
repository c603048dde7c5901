"""Memory of a rank on its device and host, by phase of a step and by part."""

from __future__ import annotations

from dataclasses import dataclass

from neoxargs.resolve.config import Config
from neoxargs.sizes.layout import Layout
from neoxargs.tools.plan.assumptions import CONTEXT, FRAGMENTATION, GROUP_BUFFERS, LOGITS_AT_ONCE, SINGLE
from neoxargs.tools.plan.memory import activations, states
from neoxargs.tools.plan.memory.activations import ActivationSizes
from neoxargs.tools.plan.memory.stages import Stage
from neoxargs.tools.plan.memory.states import ModelStates

#: Phases of a run, in the order of time.
PHASES = ("construction", "forward", "backward", "step")
#: Parts of device memory, in the order of the output; overhead is what no tensor of the run occupies.
PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "buffers", "overhead")

#: Part -> bytes.
Bytes = dict[str, int]


@dataclass(frozen=True)
class RankMemory:
    """Memory of a rank of one pipeline stage."""

    stage: Stage
    phases: dict[str, Bytes]
    """Phase -> part -> bytes on the device."""
    host: Bytes
    """Part -> bytes in host memory."""

    @property
    def peak(self) -> int:
        return max(map(self.total, PHASES))

    @property
    def peak_phase(self) -> str:
        """The phase with the highest total; of equals the first."""
        return max(PHASES, key=self.total)

    def total(self, phase: str) -> int:
        return sum(self.phases[phase].values())

    @property
    def host_peak(self) -> int:
        """Bytes in host memory at the peak: memory for construction is freed before training."""
        running = sum(size for part, size in self.host.items() if part not in ("construction", "processes"))
        return max(self.host["construction"], running) + self.host["processes"]


def rank_memory(config: Config, stage: Stage, kind: str, zero_init: bool = True) -> RankMemory:
    """Return the memory of a rank of `stage`. kind: "cuda" or "cpu". zero_init: see Target."""
    held, sizes = ModelStates(config, stage, ours=zero_init), ActivationSizes(config, kind)
    phases = {
        "construction": _construction(held, kind, zero_init),
        "forward": _forward(held, sizes),
        "backward": _backward(held, sizes),
        "step": _step(held, kind),
    }
    for parts in phases.values():
        parts["overhead"] = _overhead(config, parts, kind)
    return RankMemory(stage, phases, _host(held, sizes, zero_init))


def logits(sizes: ActivationSizes, stage: Stage) -> Bytes:
    """Return bytes of the loss, which processes a slice of the tokens at a time (train/kernels/cross_entropy.py).

    slice: 16-bit logits, their fp32 copy and 16-bit gradient. held: gradients kept until the backward pass, of the
    hidden states and, in fp32, of the output weight.
    """
    table = stage.parts.get("output", stage.parts.get("embedding", 0)) if stage.last else 0
    if not table:
        return {"slice": 0, "held": 0}
    rows = table // sizes.config.shape.hidden_size
    at_once = min(sizes.tokens, max(1, LOGITS_AT_ONCE[sizes.kind] // rows))
    copies = SINGLE if sizes.number_size == SINGLE else SINGLE + 2 * sizes.number_size
    return {"slice": at_once * rows * copies, "held": sizes.hidden + table * SINGLE}


def _construction(held: ModelStates, kind: str, zero_init: bool) -> Bytes:
    device, _ = states.construction_peak(held, zero_init)
    # the peak is either during construction, or after it, when optimizer state has been allocated
    ready = states.weights(held) + states.optimizer_state(held)
    if ready >= device:
        return {"weights": states.weights(held), "optimizer": states.optimizer_state(held)}
    return {"weights": device}


def _forward(held: ModelStates, sizes: ActivationSizes) -> Bytes:
    stage = held.stage
    loss = logits(sizes, stage)
    return _steady(held) | {
        "activations": _stored(sizes, stage),
        "logits": loss["slice"] + loss["held"],
        "buffers": states.gathered_weights(held) + _pipe_buffers(held, sizes),
    }


def _backward(held: ModelStates, sizes: ActivationSizes) -> Bytes:
    stage = held.stage
    moving = activations.recomputed(sizes, stage) + activations.transient(sizes)
    return _steady(held) | {
        "activations": _stored(sizes, stage) + moving,
        "logits": logits(sizes, stage)["held"],
        "buffers": states.gathered_weights(held) + states.buckets(held) + _pipe_buffers(held, sizes),
    }


def _step(held: ModelStates, kind: str) -> Bytes:
    return _steady(held) | {"buffers": states.buckets(held) + states.step_buffers(held)}


def _steady(held: ModelStates) -> Bytes:
    """Model states, with gradients in the forward pass too: they exist from the first micro batch on."""
    return {
        "weights": states.weights(held),
        "gradients": states.gradients(held),
        "optimizer": states.optimizer_state(held),
    }


def _stored(sizes: ActivationSizes, stage: Stage) -> int:
    return activations.micro_batches_in_flight(sizes.config, stage) * activations.stored(sizes, stage)


def _pipe_buffers(held: ModelStates, sizes: ActivationSizes) -> int:
    """Bytes of the outputs kept for the next stage, of the gradient received from it and of the one to send back."""
    before, after = not held.stage.first, not held.stage.last
    return (before + after + after * activations.micro_batches_in_flight(held.config, held.stage)) * sizes.hidden


def _overhead(config: Config, parts: Bytes, kind: str) -> int:
    lost = int(FRAGMENTATION * sum(parts.get(part, 0) for part in ("activations", "logits", "buffers")))
    if kind == "cpu":
        return CONTEXT[kind] + lost
    layout = Layout.of(config)
    # process groups that communicate: tensor, pipeline and data parallel, and the group of all ranks
    groups = sum(size > 1 for size in (layout.tensor, layout.pipe, layout.data, layout.ranks))
    return CONTEXT[kind] + groups * GROUP_BUFFERS + lost


def _host(held: ModelStates, sizes: ActivationSizes, zero_init: bool) -> Bytes:
    recompute = held.config.recompute
    in_cpu = recompute.checkpoint_activations is True and recompute.checkpoint_in_cpu
    return {
        "construction": states.construction_peak(held, zero_init)[1],
        "offloaded": states.host_memory(held),
        "pinned": states.pinned_memory(held),
        "checkpoints": len(held.stage.layers) * sizes.hidden // sizes.tensor if in_cpu else 0,
        "processes": CONTEXT["cpu"],
    }
