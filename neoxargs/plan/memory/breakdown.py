"""Memory of a rank on its device and host, by phase of a step and by part."""

from __future__ import annotations

from functools import cached_property, lru_cache

from neoxargs.base.record import Record
from neoxargs.facts.layout import Layout
from neoxargs.facts.model import tokens_at_once
from neoxargs.facts.trained import is_frozen
from neoxargs.plan.given.assumptions import HALF, SINGLE
from neoxargs.plan.memory import activations, states
from neoxargs.plan.memory.activation_sizes import ActivationSizes
from neoxargs.plan.memory.stages import Stage
from neoxargs.plan.memory.states import ModelStates

#: Phases of a run, in the order of time.
PHASES = ("construction", "forward", "backward", "step", "evaluation", "saving")
#: Parts of device memory that a run needs, in the order of the output.
PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "buffers", "fragmentation", "overhead")
#: Parts that are no tensors. torch's allocator gives cached blocks back when memory runs out, but not what is lost
#: between tensors; the overhead lies outside of it.
FRAGMENTATION, CACHED, OVERHEAD = "fragmentation", "cached", "overhead"
#: Parts whose tensors come and go.
TRANSIENT = ("activations", "logits", "buffers")

#: A program whose loss may process more logits than this at once computes all of them together.
LOGITS_OF_ANY_RUN = 1e14

#: Part -> bytes.
Bytes = dict[str, int]


class RankMemory(Record):
    """Memory of a rank of one pipeline stage."""

    stage: Stage
    phases: dict[str, Bytes]
    """Bytes on the device, by phase and part."""
    host: Bytes
    """Bytes in host memory, by part."""

    @cached_property
    def peak(self) -> int:
        return max(map(self.total, PHASES))

    @property
    def peak_phase(self) -> str:
        """The phase with the highest total; of equals the first."""
        return max(PHASES, key=self.total)

    def total(self, phase: str) -> int:
        """Bytes that a phase needs: everything but blocks that are cached although no tensor needs them."""
        return self._without(self.phases[phase], CACHED)

    @property
    def allocated(self) -> int:
        """Peak bytes of tensors: torch.cuda.max_memory_allocated."""
        return max(self._without(parts, FRAGMENTATION, CACHED, OVERHEAD) for parts in self.phases.values())

    @property
    def reserved(self) -> int:
        """Peak bytes that torch's allocator holds: torch.cuda.max_memory_reserved."""
        return max(self._without(parts, OVERHEAD) for parts in self.phases.values())

    @property
    def occupied(self) -> int:
        """Peak bytes that nvidia-smi shows on a device that is large enough."""
        return max(self._without(parts) for parts in self.phases.values())

    def _without(self, parts: Bytes, *left_out: str) -> int:
        return sum(size for part, size in parts.items() if part not in left_out)

    @property
    def host_peak(self) -> int:
        """Bytes in host memory at the peak: memory for construction is freed before training."""
        running = sum(size for part, size in self.host.items() if part not in ("construction", "processes"))
        return max(self.host["construction"], running) + self.host["processes"]


def rank_memory(sizes: ActivationSizes, stage: Stage, zero_init: bool) -> RankMemory:
    """Return the memory of a rank of `stage`. zero_init: see Target."""
    kind, assumed = sizes.kind, sizes.assumed
    held = ModelStates(sizes.config, stage, zero_init, assumed)
    # Gradients exist in the forward pass too, from the first micro batch on. A checkpoint is saved from these states:
    # torch.save copies one tensor at a time to host memory.
    steady = {
        "weights": states.weights(held),
        "gradients": states.gradients(held),
        "optimizer": states.optimizer_state(held),
    }
    built_on_device, built_on_host = states.construction_peak(held)
    ready = {part: steady[part] for part in ("weights", "optimizer")}
    in_flight = activations.micro_batches_in_flight(sizes.config, stage)
    stored, of_loss = in_flight * activations.stored(sizes, stage), logits(sizes, stage)
    # Outputs kept for the next stage, the gradient received from it, and the one to send back.
    sent = (not stage.first) + (not stage.last) * (1 + in_flight)
    buffers = states.gathered_weights(held) + sent * sizes.hidden
    phases = {
        # Its peak is before there is optimizer state, or after.
        "construction": ready if sum(ready.values()) >= built_on_device else {"weights": built_on_device},
        "forward": {**steady, **_forward(sizes, stage, stored, of_loss["forward"]), "buffers": buffers},
        "backward": {**steady, "activations": stored + _moving(sizes, stage), "buffers": buffers + _reduced(held)},
        "step": {**steady, "buffers": _step(held)},
        "evaluation": {**steady, **_evaluation(sizes, stage, of_loss["evaluation"]), "buffers": buffers},
        "saving": {**steady},
    }
    for parts in phases.values():
        if kind == "cuda":
            parts["buffers"] = parts.get("buffers", 0) + assumed.bytes_of("workspace")
        tensors, transient = sum(parts.values()), sum(parts.get(part, 0) for part in TRANSIENT)
        parts[FRAGMENTATION] = int(assumed.fragmentation * transient)
        parts[CACHED] = int(assumed.cached_blocks * tensors)
        parts[OVERHEAD] = _overhead(sizes)
    if kind == "cpu":  # there, host memory is the memory of the device
        for phase in PHASES[1:]:
            phases[phase]["buffers"] = phases[phase].get("buffers", 0) + states.saved_copies(held)
    return RankMemory(stage, phases, _host(held, sizes, built_on_host))


def logits(sizes: ActivationSizes, stage: Stage) -> Bytes:
    """Return phase -> bytes of the loss, which processes a slice of the tokens at a time (train/losses).

    A slice holds fp32 logits, the 16-bit logits that they are copied from or their 16-bit gradient, and its part of the
    output weight's gradient. Until the backward pass begins, gradients of the hidden states and, in fp32, of the output
    weight are kept, unless that is frozen. A program that computes all logits at once keeps those instead. Both are
    gone when the backward pass reaches the layers. Bounded logits (`final_logit_softcapping`) need their slope in fp32.
    """
    table = stage.parts.get("output", stage.parts.get("embedding", 0)) if stage.last else 0
    if not table:
        return {"forward": 0, "evaluation": 0}
    rows = table // sizes.config.shape.hidden_size
    most = sizes.assumed.most_logits(sizes.kind)
    at_once, in_half = min(sizes.tokens, tokens_at_once(most, rows)), sizes.number_size == HALF
    processed = int(at_once * rows * (sizes.assumed.logit_bytes if in_half else SINGLE))
    of_weight = 0 if is_frozen(sizes.config) else table * (SINGLE + (HALF if in_half else 0))
    kept = 0 if most > LOGITS_OF_ANY_RUN else sizes.hidden + of_weight
    slope = SINGLE * at_once * rows if sizes.config.embedding.final_logit_softcapping else 0
    return {"forward": processed + slope + kept, "evaluation": processed}


def _forward(sizes: ActivationSizes, stage: Stage, stored: int, of_loss: int) -> Bytes:
    """The forward pass of the last micro batch in flight, which needs most in its last layer or in the loss."""
    layer = {"activations": stored + activations.at_the_end_of_a_layer(sizes, stage), "logits": 0}
    loss = {"activations": stored + activations.at_the_loss(sizes, stage), "logits": of_loss}
    # Whichever needs more of the two: they are at different times.
    return max(loss, layer, key=lambda parts: sum(parts.values()))


def _moving(sizes: ActivationSizes, stage: Stage) -> int:
    """Bytes of activations that the backward pass needs beside the stored ones."""
    moving = activations.recomputed(sizes, stage) + activations.transient(sizes, stage)
    return moving + activations.kept_output(sizes, stage)


def _reduced(held: ModelStates) -> int:
    """Bytes of buckets in the backward pass; the pipeline engine reduces gradients after its last one."""
    return 0 if held.pipelined else states.buckets(held)


def _step(held: ModelStates) -> int:
    """Bytes of buffers in the optimizer step; stage 3 keeps its bucket, a pipeline reduces gradients before it."""
    kept = states.buckets(held) if held.zero_stage in (0, 3) else 0
    reduced = states.buckets(held) if held.pipelined else 0
    return max(reduced, kept + states.step_buffers(held))


def _evaluation(sizes: ActivationSizes, stage: Stage, of_loss: int) -> Bytes:
    """Evaluation keeps no activations but those of the layer that is computed, and no gradients of the loss."""
    return {"activations": max(activations.blocks(sizes, stage.layers), default=0), "logits": of_loss}


@lru_cache(maxsize=1)  # of one plan, for all stages
def _overhead(sizes: ActivationSizes) -> int:
    assumed = sizes.assumed
    if sizes.kind == "cpu":
        return assumed.bytes_of("process")
    layout = Layout.of(sizes.config)
    # process groups that communicate: tensor, pipeline, context and data parallel, and the group of all ranks; and the
    # data parallel ranks that divide the experts, and those that have the same ones
    divided = sizes.config.parallel.moe_expert_parallel_size
    of_experts = (divided, layout.with_same_weights // divided) if divided > 1 else ()
    ranks = layout.tensor, layout.pipe, layout.with_same_weights, layout.ranks, layout.context, *of_experts
    groups = sum(number > 1 for number in ranks)
    buffers: int = groups * assumed.bytes_of("group_buffers")
    return assumed.bytes_of("context") + buffers


def _host(held: ModelStates, sizes: ActivationSizes, construction: int) -> Bytes:
    recompute = held.config.recompute
    in_cpu = recompute.checkpoint_activations is True and recompute.checkpoint_in_cpu
    return {
        "construction": construction,
        "offloaded": states.host_memory(held),
        "pinned": states.pinned_memory(held),
        "rounding": states.lost_to_pinning(held) if sizes.kind == "cuda" else 0,
        "checkpoints": len(held.stage.layers) * sizes.hidden // sizes.tensor if in_cpu else 0,
        "saving": states.saved_copies(held),
        "processes": held.assumed.bytes_of("process" if sizes.kind == "cpu" else "gpu_process"),
    }
