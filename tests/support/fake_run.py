"""Ranks of a run of any size, each alone in a process: torch's fake process groups send nothing and wait for nobody.

The engines are train.py's. What a rank receives is zeros. Only whole numbers matter, such as the shapes that pipeline
stages tell each other: they are those that the first ranks have sent, which run before the others.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from neoxargs.facts.layout import stages
from tests.support.collectives import Collective, logged
from tests.support.ranks import CPU, forked_from
from tests.support.small_gpt import VOCABULARY, small

MICRO_BATCH, MICRO_BATCHES = 2, 2


class Told(NamedTuple):
    """Whole numbers that a rank has sent."""

    messages: dict[int, list[int]] = {}
    """To the next stage, by how many there are."""
    broadcasts: list[list[int]] = []


class Layout(NamedTuple):
    """How a run is divided. json: changes of DeepSpeed's."""

    tensor: int
    pipe: int
    """`pipe_parallel_size`."""
    data: int
    """Data parallel ranks, context parallel ones among them."""
    config: dict[str, Any] = {}
    json: dict[str, Any] = {}

    @property
    def world(self) -> int:
        return self.tensor * stages(self.pipe) * self.data

    def rank(self, pipe: int, data: int, tensor: int) -> int:
        return (pipe * self.data + data) * self.tensor + tensor

    def some_ranks(self) -> list[int]:
        """Return ranks among which are whole groups of every axis, and two members at least of others."""
        pipes, datas, tensors = range(stages(self.pipe)), range(self.data), range(self.tensor)
        ends = itertools.product(pipes, {0, self.data - 1}, {0, self.tensor - 1})
        lines = [*((0, 0, each) for each in tensors), *((0, each, 0) for each in datas[:16])]
        return sorted({self.rank(*place) for place in (*ends, *lines)})


class Seen(NamedTuple):
    """What one rank did in its start and a step."""

    start: list[Collective]
    step: list[Collective]
    groups: int
    """Process groups that it is in."""
    seconds: float
    """To start, without importing modules."""
    told: Told = Told()


def run(layout: Layout, ranks: Sequence[int], planted: int | None = None) -> dict[int, Seen]:
    """Run these ranks, each in a process of its own.

    ranks: with those before any that differs from them in its stage or replica only. planted: a rank that calls one
    more all-reduce in its step.
    """
    first = [rank for rank in ranks if rank < layout.tensor]
    found = _each(layout, dict.fromkeys(first, Told()), planted)
    # Tensor parallel ranks tell different numbers.
    told = {rank: found[rank % layout.tensor].told for rank in ranks if rank not in first}
    return found | _each(layout, told, planted)


def _each(layout: Layout, told: Mapping[int, Told], planted: int | None) -> dict[int, Seen]:
    with (
        forked_from(CPU.preload),
        ProcessPoolExecutor(2, multiprocessing.get_context("forkserver"), max_tasks_per_child=1) as pool,
    ):
        calls = {rank: pool.submit(_run, layout, rank, each, planted == rank) for rank, each in told.items()}
        return {rank: call.result() for rank, call in calls.items()}


def _run(layout: Layout, rank: int, told: Told, planted: bool) -> Seen:
    own = {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(layout.world), "OMP_NUM_THREADS": "1"}
    os.environ.update(CPU.environment | own | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"})
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=layout.world)
    with _receiving(told) as sent:
        return start_and_step(layout, planted)._replace(told=sent)


def start_and_step(layout: Layout, planted: bool = False) -> Seen:
    """Return what this rank does, in whatever process groups it is."""
    from neoxargs.train.engine import build
    from neoxargs.train.micro_batch import MicroBatch
    from neoxargs.train.process import mesh, setup

    began = time.perf_counter()
    with logged() as start:
        setup.start("nccl", seed=1)
        samples = MICRO_BATCH * MICRO_BATCHES * layout.data // layout.config.get("context_parallel_size", 1)
        config = small(**_sizes(layout, samples))
        place = mesh.build_mesh(config)
        json = {
            "train_batch_size": samples, "train_micro_batch_size_per_gpu": MICRO_BATCH, "gradient_clipping": 1.0,
            "gradient_accumulation_steps": MICRO_BATCHES,
        }  # fmt: skip
        trainer = build.build(config, json | layout.json, VOCABULARY, place)
    seconds = time.perf_counter() - began
    random = torch.Generator().manual_seed(place.data.rank)
    tokens = torch.randint(VOCABULARY.size, (MICRO_BATCH, config.shape.seq_length), generator=random)
    batches = itertools.repeat(MicroBatch(tokens, tokens)) if trainer.reads_data else None
    if config.fusion.compile_layers:
        trainer.take_step(batches, (0, 0))
    with logged(config.fusion.compile_layers) as step:
        if planted:
            dist.all_reduce(torch.ones(1), group=place.data.group)
        trainer.take_step(batches, (0, 0))
    return Seen(start, step, len(dist.distributed_c10d._world.pg_map), seconds)


def _sizes(layout: Layout, samples: int) -> dict[str, Any]:
    """Return a configuration that divides by the layout: a head for each tensor parallel rank, a layer for a stage."""
    heads, layers = max(4, layout.tensor), max(2, layout.pipe)
    return {
        "num_attention_heads": heads, "num_kv_heads": heads, "hidden_size": 8 * heads, "num_layers": layers,
        "intermediate_size": 32 * heads, "model_parallel_size": layout.tensor, "pipe_parallel_size": layout.pipe,
        "seed": 1, "lr": 1e-2, "optimizer.params.lr": 1e-2, "lr_decay_style": "cosine", "lr_decay_iters": 30,
        "warmup": 0.0, "train_batch_size": samples, **layout.config,
    }  # fmt: skip


class _Numbers:
    """Fills what is received, and notes the whole numbers that are sent."""

    def __init__(self, told: Told) -> None:
        self.told, self.left, self.sent = told, list(told.broadcasts), Told({}, [])

    def of_message(self, x: Tensor) -> None:
        """x: before it is sent."""
        if not x.is_floating_point():
            self.sent.messages[x.numel()] = x.tolist()

    def received(self, x: Tensor) -> None:
        x.zero_()
        if not x.is_floating_point():
            # A gradient is divided as the activations that the first stage has sent.
            numbers = (self.told.messages or self.sent.messages)[x.numel()]
            x.copy_(torch.tensor(numbers, dtype=x.dtype).view_as(x))

    def of_broadcast(self, x: Tensor, ranks: list[int]) -> None:
        """Rank 0 of the run tells all others."""
        if x.is_floating_point() or 0 not in ranks:
            return
        if dist.get_rank() == 0:
            self.sent.broadcasts.append(x.tolist())
        elif self.left:
            x.copy_(torch.tensor(self.left.pop(0), dtype=x.dtype).view_as(x))


@contextmanager
def _receiving(told: Told) -> Iterator[Told]:
    """Fill what is received within the block, and return the whole numbers that are sent."""
    numbers, group_class = _Numbers(told), dist.ProcessGroup

    def before(name: str, note: Callable[[Any, Tensor], None]) -> Any:
        inner = getattr(group_class, name)

        def call(group: Any, tensors: list[Tensor], *arguments: Any) -> Any:
            for x in tensors:
                note(group, x)
            return inner(group, tensors, *arguments)

        return call

    def flat(name: str) -> Any:
        """Return the operation on flat tensors: the fake group compares shapes, of which others only read the size."""
        inner = getattr(group_class, name)
        return lambda group, out, x, *rest: inner(group, out.detach().view(-1), x.detach().view(-1), *rest)

    with pytest.MonkeyPatch.context() as patch:
        for name in ("all_gather_single", "_allgather_base", "reduce_scatter_single", "_reduce_scatter_base"):
            patch.setattr(group_class, name, flat(name))
        patch.setattr(group_class, "send", before("send", lambda _, x: numbers.of_message(x)))
        patch.setattr(group_class, "recv", before("recv", lambda _, x: numbers.received(x)))
        ranks = dist.get_process_group_ranks
        patch.setattr(
            group_class, "broadcast", before("broadcast", lambda group, x: numbers.of_broadcast(x, ranks(group)))
        )
        yield numbers.sent


def stuck(logs: Mapping[int, Sequence[Collective]]) -> dict[int, Collective]:
    """Let the ranks do what they have logged, in order and waiting for each other; return what some wait for forever.

    A collective operation ends when all its ranks that are in `logs` have begun the same one, with the same tensors; a
    message when both ranks have begun it. Empty if every rank has come to its end.
    """
    left = {rank: deque(log) for rank, log in logs.items()}
    moved = True
    while moved:
        moved = False
        for rank, log in left.items():
            while log and (members := _ready(rank, log[0], left)):
                for member in members:
                    left[member].popleft()
                moved = True
    return {rank: log[0] for rank, log in left.items() if log}


def _ready(rank: int, own: Collective, left: Mapping[int, deque[Collective]]) -> list[int]:
    """Return the ranks whose next operation is this one, if all have come to it."""
    other = {"send": "recv", "recv": "send"}.get(own.operator)
    if other:
        assert own.peer is not None
        if own.peer not in left:
            return [rank]
        answer = own._replace(operator=other, peer=rank)
        return [rank, own.peer] if left[own.peer] and left[own.peer][0] == answer else []
    members = [member for member in own.ranks if member in left]
    return members if all(left[member] and _same(left[member][0], own) for member in members) else []


def _same(one: Collective, other: Collective) -> bool:
    # How many rows an all-to-all exchanges depends on the data; a group's member may reach it by another name.
    if one.operator.startswith("all_to_all") or one.operator.startswith("alltoall"):
        return (one.operator, one.ranks) == (other.operator, other.ranks)
    return one == other
