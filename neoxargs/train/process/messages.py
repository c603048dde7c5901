"""The time that this rank is in messages on CPUs, whose operations return, or are waited for, when they are done."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch.distributed as dist

#: What starts an operation, or waits for it. Of two names of one operation, torch calls that of its version.
OPERATIONS: dict[Any, tuple[str, ...]] = {
    dist.ProcessGroup: (
        "_allgather_base", "_reduce_scatter_base", "all_gather_single", "all_gather_single_coalesced",
        "all_to_all_single", "allgather", "allgather_coalesced", "allgather_into_tensor_coalesced", "allreduce",
        "allreduce_coalesced", "alltoall", "alltoall_base", "barrier", "broadcast", "gather", "monitored_barrier",
        "recv", "recv_anysource", "reduce", "reduce_scatter", "reduce_scatter_single",
        "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced", "scatter", "send",
    ),
    dist.Work: ("wait",),
}  # fmt: skip


@contextmanager
def timed(add: Callable[[float], None], clock: Callable[[], float] = time.perf_counter) -> Iterator[None]:
    """Within this, call `add` with the seconds of each operation, which include waiting for other ranks.

    Not those of compiled graphs.
    """
    # As declared: a method that is read from its class would no longer be bound to objects.
    before = [(owner, name, vars(owner)[name])
              for owner, names in OPERATIONS.items() for name in names if name in vars(owner)]  # fmt: skip
    depth = 0

    def timing(operation: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(operation)
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal depth
            began, depth = clock(), depth + 1
            try:
                return operation(*arguments, **named)
            finally:
                depth -= 1
                if not depth:
                    add(clock() - began)

        return call

    try:
        for owner, name, _ in before:
            setattr(owner, name, timing(getattr(owner, name)))
        yield
    finally:
        for owner, name, operation in before:
            setattr(owner, name, operation)
