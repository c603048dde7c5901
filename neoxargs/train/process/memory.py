"""Memory use of this process."""

from __future__ import annotations

import gc
import resource
import sys
from collections.abc import Callable
from typing import Any

import torch

from neoxargs.train.process.setup import on_gpu


def peak() -> int:
    """Return the peak memory of this process in bytes: of tensors on a GPU; on a CPU of the whole process."""
    if on_gpu():
        return torch.cuda.max_memory_allocated()
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB on Linux, bytes on macOS
    return resident if sys.platform == "darwin" else resident * 1024


def peak_of(work: Callable[[], object]) -> int:
    """Run `work` and return its peak of allocated tensors in bytes, without tensors allocated before."""
    # So that objects in cycles of references are not freed, and their memory reused, during `work`.
    gc.collect()
    if on_gpu():
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        work()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    assert profiler.profiler is not None
    # Sorted by time: the first one gives the total before `work`.
    allocations = sorted(_allocations(profiler.profiler.kineto_results))
    before = allocations[0][1] - allocations[0][2] if allocations else 0
    return max((total - before for _, total, _ in allocations), default=0)


def _allocations(results: Any) -> list[tuple[int, int, int]]:
    """Return (time in ns, total bytes allocated after it, bytes added or freed) for each allocation.

    The total includes what earlier profilers recorded.
    """
    allocations, events = [], list(results.experimental_event_tree())
    while events:
        event = events.pop()
        events += event.children
        if event.tag.name == "Allocation":
            size = event.extra_fields
            allocations.append((event.start_time_ns, size.total_allocated, size.alloc_size))
    return allocations
