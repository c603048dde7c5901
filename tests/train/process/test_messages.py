"""Time in messages on CPUs: every way to send is noticed, and nothing is left changed."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from neoxargs.train.process import messages
from tests.support.ranks import run_ranks


def noticed() -> dict[str, int]:
    """Return how often time was added for each operation."""
    x, other = torch.ones(4), dist.get_rank() ^ 1
    pair = [torch.empty(4), torch.empty(4)]
    operations: dict[str, Callable[[], object]] = {
        "all-reduce": lambda: dist.all_reduce(x),
        "all-reduce, waited for": lambda: dist.all_reduce(x, async_op=True).wait(),
        "gather": lambda: dist.all_gather(pair, x),
        "broadcast": lambda: dist.broadcast(x, 0),
        "message": lambda: dist.send(x, other) if dist.get_rank() else dist.recv(x, other),
        "objects": lambda: dist.all_gather_object([None, None], 1),
        "barrier": dist.barrier,
        "nothing": lambda: x + 1,
    }
    seconds: list[float] = []
    found = {}
    with messages.timed(seconds.append):
        for name, operation in operations.items():
            seconds.clear()
            operation()
            found[name] = len(seconds)
    seconds.clear()
    operations["all-reduce"]()
    return found | {"afterwards": len(seconds)}


def test_every_operation_is_timed_until_the_end() -> None:
    for found in run_ranks(noticed, 2):
        assert found.pop("nothing") == found.pop("afterwards") == 0
        assert min(found.values()) > 0
