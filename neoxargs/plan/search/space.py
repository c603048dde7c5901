"""The layouts that a search tries: how a number of devices and a global batch can be divided."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from neoxargs.base.record import Record
from neoxargs.config.config import Config
from neoxargs.hosts.assumed import assumed_hosts
from neoxargs.plan.advice.smaller import Changes

MICRO = "train_micro_batch_size_per_gpu"
#: Values of `checkpoint_activations`, from the least memory to the least work.
RECOMPUTE: tuple[bool | str, ...] = (True, "selective", False)
#: The largest micro batch size that is tried.
LARGEST_MICRO_BATCH = 64


class Division(Record):
    """How ranks divide a model and its states. pipe: 0 means no pipeline engine."""

    tensor: int
    pipe: int
    data: int
    zero: int
    sequence_parallel: bool = False
    offload: bool = False
    """Optimizer state in host memory."""
    expert: int = 1
    """Number of data parallel ranks among which the experts of a layer are divided."""
    context: int = 1
    """The configuration's own number of context parallel ranks, which the search keeps."""

    def changes(self) -> Changes:
        """Return the overrides that select this division."""
        experts = {"moe_expert_parallel_size": self.expert} if self.expert > 1 else {}
        return {
            **experts,
            "model_parallel_size": self.tensor,
            "context_parallel_size": self.context,
            "pipe_parallel_size": self.pipe,
            "sequence_parallel": self.sequence_parallel,
            "zero_optimization.stage": self.zero,
            "zero_optimization.offload_optimizer.device": "cpu" if self.offload else "none",
        }

    def __str__(self) -> str:
        parts = [f"tensor {self.tensor}"] if self.tensor > 1 else []
        parts += [f"context {self.context}"] if self.context > 1 else []
        parts += [f"pipeline {self.pipe}"] if self.pipe else []
        parts += [f"data {self.data}", *([f"expert {self.expert}"] if self.expert > 1 else []), f"ZeRO-{self.zero}"]
        parts += ["sequence parallel"] if self.sequence_parallel else []
        return ", ".join([*parts, "optimizer on the host"] if self.offload else parts)


class Layout(Record):
    """A division with its micro batches and what is recomputed."""

    division: Division
    micro: int
    steps: int
    """Number of micro batches per rank in each training step."""
    recompute: bool | str

    def changes(self) -> Changes:
        """Return the overrides that select this layout."""
        return {
            **self.division.changes(),
            MICRO: self.micro,
            "gradient_accumulation_steps": self.steps,
            "checkpoint_activations": self.recompute,
        }

    def __str__(self) -> str:
        recomputed = {True: ", recomputation", "selective": ", selective recomputation", False: ""}[self.recompute]
        return f"{self.division}, micro batch {self.micro}, accumulation {self.steps}{recomputed}"


def divisions(config: Config, devices: int, per_host: int, offload: bool = False) -> Iterator[Division]:
    """Yield all divisions of a number of devices; tensor parallel ranks are on one host.

    The pipeline engine excludes ZeRO-2 and 3; offloading needs them here, where they save the most host memory.
    """
    context, experts = config.parallel.context_parallel_size, config.moe.moe_num_experts
    slots = {len(numbers) for numbers in assumed_hosts(devices, per_host).values()}
    for tensor in (size for size in _divisors(devices, per_host) if not any(count % size for count in slots)):
        # Without the divisor 1: a pipeline of one stage is the plain engine with fewer ZeRO stages.
        if devices // tensor % context:
            continue
        for pipe in (0, *_divisors(devices // tensor // context, config.shape.num_layers)[1:]):
            data = devices // tensor // context // max(pipe, 1)
            divided = data * context > 1
            stages = (2, 3) if offload else (0, 1, 2, 3) if divided and not pipe else (0, 1) if divided else (0,)
            if offload and pipe:
                continue
            shares = [size for size in _divisors(data * context, experts) if experts % size == 0]
            for stage, expert in product(stages, shares):
                # With tensor parallelism always sequence parallel, which sends as many bytes and saves memory
                # (arXiv:2205.05198).
                yield Division(tensor, pipe, data, stage, tensor > 1, offload, expert, context)


def micro_batches(division: Division, samples: int) -> list[tuple[int, int]]:
    """Return the micro batch sizes with their accumulation steps, smallest first, each at least twice the one before.

    samples: of the global batch.
    """
    if samples % division.data:
        return []
    each, sizes = samples // division.data, list[int]()
    for size in _divisors(each, LARGEST_MICRO_BATCH):
        if not sizes or size >= 2 * sizes[-1]:
            sizes.append(size)
    return [(size, each // size) for size in sizes]


def _divisors(number: int, most: int) -> list[int]:
    return [size for size in range(1, min(number, most) + 1) if number % size == 0]
