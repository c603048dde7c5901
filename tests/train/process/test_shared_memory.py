"""Channels through shared memory: the same results as gloo's, and failures that are noticed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from neoxargs.processes.failures import Cause, cause_of
from neoxargs.train.process import shared_memory
from neoxargs.train.process.shared_memory import PART, open_channel
from tests.support.ranks import run_ranks

LARGE = PART // 4 + 17


def _drawn(size: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(dist.get_rank())
    return (100 * torch.randn(size, generator=generator)).to(dtype)


def reduce() -> list[tuple[str, bool]]:
    """Compare every reduction with gloo's."""
    channel = open_channel(dist.group.WORLD, 60)
    assert channel is not None
    results = []
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        for size in (1, 1000, LARGE):
            for operation in shared_memory.OPERATIONS:
                mine, theirs = (_drawn(size, dtype).view(1, -1) for _ in range(2))
                channel.start_all_reduce(mine, operation).wait()
                dist.all_reduce(theirs, operation)
                # gloo may add in another order; the sum of two ranks has one.
                same = torch.equal(mine, theirs) if channel.size == 2 else torch.allclose(mine, theirs, atol=4)
                results.append((f"{dtype} {size} {operation}", same))
    channel.close()
    return results


@pytest.mark.parametrize("ranks", [2, 3])
def test_reductions_are_those_of_gloo(ranks: int) -> None:
    for results in run_ranks(reduce, ranks):
        assert [name for name, same in results if not same] == []


def reduce_at_once() -> list[float]:
    """Begin a reduction, make others, and wait for the first one last; broadcast between them."""
    channel = open_channel(dist.group.WORLD, 60)
    assert channel is not None
    first, second, third = (torch.full((5,), 10.0**power + channel.rank) for power in range(3))
    work = channel.start_all_reduce(first)
    channel.start_all_reduce(second).wait()
    assert work.is_completed()
    channel.broadcast(third, 1)
    work.wait()
    work.wait()
    return [first[0].item(), second[0].item(), third[0].item()]


def test_an_unfinished_reduction_does_not_disturb_the_next() -> None:
    assert run_ranks(reduce_at_once, 2) == [[3.0, 21.0, 101.0]] * 2


def wait_for_a_dead_rank() -> list[Any]:
    channel = open_channel(dist.group.WORLD, 60)
    late = open_channel(dist.group.WORLD, 0.05)
    assert channel is not None and late is not None
    if channel.rank == 1:
        dist.barrier()
        channel.close()
        late.wait_for_all()  # keeps the other channel open until rank 0 has given up
        return []
    causes = []
    for waiting in (late, channel):
        try:
            waiting.start_all_reduce(torch.ones(2)).wait()
        except shared_memory.Lost as error:
            causes.append(cause_of(error))
        if waiting is late:
            dist.barrier()
    return causes


def test_a_rank_that_is_gone_or_late_is_an_error() -> None:
    assert run_ranks(wait_for_a_dead_rank, 2)[0] == [Cause.TIMED_OUT, Cause.LOST_CONNECTION]


def open_on_several_machines() -> bool:
    shared_memory._machine_id = lambda: f"machine {dist.get_rank()}"  # type: ignore[assignment]
    return open_channel(dist.group.WORLD, 60) is None


def test_ranks_of_several_machines_have_no_channel() -> None:
    assert run_ranks(open_on_several_machines, 2) == [True, True]
