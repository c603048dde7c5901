"""How full a device and its host are, in each phase of a step and in each part."""

from __future__ import annotations

from dataclasses import dataclass

from neoxargs.resolve.config import Config
from neoxargs.sizes.layout import Layout
from neoxargs.tools.plan.assumptions import CONTEXT, FRAGMENTATION, GROUP_BUFFERS, LOGITS_AT_ONCE, SINGLE
from neoxargs.tools.plan.memory import activations, states
from neoxargs.tools.plan.memory.activations import Sizes
from neoxargs.tools.plan.memory.stages import Stage
from neoxargs.tools.plan.memory.states import States

#: In the order of time.
PHASES = ("construction", "forward", "backward", "step")
#: In the order in which they are shown; the last is everything that no tensor of the run occupies.
PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "buffers", "overhead")
HOST_PARTS = ("construction", "offloaded", "pinned", "checkpoints", "processes")

Bytes = dict[str, int]


@dataclass(frozen=True)
class Account:
    """One rank of a stage. phases: phase -> part -> bytes on the device."""

    stage: Stage
    phases: dict[str, Bytes]
    host: Bytes
    """Part -> bytes in the host's memory, for one rank."""

    @property
    def peak(self) -> int:
        return max(map(self.total, PHASES))

    @property
    def fullest(self) -> str:
        """The phase of the peak, the earliest of equals."""
        return max(PHASES, key=self.total)

    def total(self, phase: str) -> int:
        return sum(self.phases[phase].values())

    @property
    def host_peak(self) -> int:
        """What is needed while the model is built is free again when the run goes on."""
        running = sum(size for part, size in self.host.items() if part not in ("construction", "processes"))
        return max(self.host["construction"], running) + self.host["processes"]


def account(config: Config, stage: Stage, kind: str, zero_init: bool = True) -> Account:
    """What a rank of `stage` holds. kind: "cuda" or "cpu". zero_init: is a ZeRO-3 model divided while it is built?"""
    held, sizes = States(config, stage), Sizes(config, kind)
    phases = {
        "construction": _construction(held, kind, zero_init),
        "forward": _forward(held, sizes),
        "backward": _backward(held, sizes),
        "step": _step(held, kind),
    }
    for parts in phases.values():
        parts["overhead"] = _overhead(config, parts, kind)
    return Account(stage, phases, _host(held, sizes, zero_init))


def logits(sizes: Sizes, stage: Stage) -> Bytes:
    """The loss works on a slice of the tokens at a time; of its gradients those of hidden and weight stay.

    slice: 16-bit product, fp32 copy, 16-bit gradient; held until the backward pass: hidden, and the table in fp32.
    """
    table = stage.parts.get("output", stage.parts.get("embedding", 0)) if stage.last else 0
    if not table:
        return {"slice": 0, "held": 0}
    rows = table // sizes.config.shape.hidden_size
    at_once = min(sizes.tokens, max(1, LOGITS_AT_ONCE[sizes.kind] // rows))
    copies = SINGLE if sizes.number == SINGLE else SINGLE + 2 * sizes.number
    return {"slice": at_once * rows * copies, "held": sizes.hidden + table * SINGLE}


def _construction(held: States, kind: str, zero_init: bool) -> Bytes:
    device, _ = states.built(held, zero_init)
    ready = states.weights(held) + states.optimizer(held)
    if ready >= device:
        return {"weights": states.weights(held), "optimizer": states.optimizer(held)}
    return {"weights": device}


def _forward(held: States, sizes: Sizes) -> Bytes:
    stage = held.stage
    loss = logits(sizes, stage)
    return _steady(held) | {
        "activations": _all_kept(sizes, stage),
        "logits": loss["slice"] + loss["held"],
        "buffers": states.gathered(held) + _pipe_buffers(held, sizes),
    }


def _backward(held: States, sizes: Sizes) -> Bytes:
    stage = held.stage
    moving = activations.recomputed(sizes, stage) + activations.transient(sizes)
    return _steady(held) | {
        "activations": _all_kept(sizes, stage) + moving,
        "logits": logits(sizes, stage)["held"],
        "buffers": states.gathered(held) + states.buckets(held) + _pipe_buffers(held, sizes),
    }


def _step(held: States, kind: str) -> Bytes:
    return _steady(held) | {"buffers": states.buckets(held) + states.of_step(held)}


def _steady(held: States) -> Bytes:
    return {
        "weights": states.weights(held),
        "gradients": states.gradients(held),
        "optimizer": states.optimizer(held),
    }


def _all_kept(sizes: Sizes, stage: Stage) -> int:
    return activations.in_flight(sizes.config, stage) * activations.kept(sizes, stage)


def _pipe_buffers(held: States, sizes: Sizes) -> int:
    """What waits to be sent to the next stage or was; a gradient that arrives from it, and one that leaves."""
    before, after = not held.stage.first, not held.stage.last
    return (before + after + after * activations.in_flight(held.config, held.stage)) * sizes.hidden


def _overhead(config: Config, parts: Bytes, kind: str) -> int:
    lost = int(FRAGMENTATION * sum(parts.get(part, 0) for part in ("activations", "logits", "buffers")))
    if kind == "cpu":
        return CONTEXT[kind] + lost
    layout = Layout.of(config)
    groups = sum(size > 1 for size in (layout.tensor, layout.pipe, layout.data, layout.ranks))  # and all together
    return CONTEXT[kind] + groups * GROUP_BUFFERS + lost


def _host(held: States, sizes: Sizes, zero_init: bool) -> Bytes:
    recompute = held.config.recompute
    runs = recompute.checkpoint_activations and recompute.checkpoint_in_cpu
    return {
        "construction": states.built(held, zero_init)[1],
        "offloaded": states.host(held),
        "pinned": states.pinned(held),
        "checkpoints": len(held.stage.layers) * sizes.hidden // sizes.tensor if runs else 0,
        "processes": CONTEXT["cpu"],
    }
