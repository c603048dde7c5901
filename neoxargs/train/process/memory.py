"""How much memory a process takes."""

from __future__ import annotations

import gc
import resource
import sys
from collections.abc import Callable
from typing import Any

import torch

from neoxargs.train.process.setup import on_gpu


def peak() -> int:
    """Bytes this process has taken at most so far: tensors on a GPU; on a CPU everything, libraries included."""
    if on_gpu():
        return torch.cuda.max_memory_allocated()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def peak_of(work: Callable[[], object]) -> int:
    """Bytes of tensors that `work` had allocated at the same time at most, beside those that were there before."""
    gc.collect()
    if on_gpu():
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        work()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    assert profiler.profiler is not None
    allocations = sorted(_allocations(profiler.profiler.kineto_results))
    before = allocations[0][1] - allocations[0][2] if allocations else 0
    return max((total - before for _, total, _ in allocations), default=0)


def _allocations(results: Any) -> list[tuple[int, int, int]]:
    """When; bytes allocated in all from then on, what earlier profilers saw included; by how many that changed."""
    found, events = [], list(results.experimental_event_tree())
    while events:
        event = events.pop()
        events += event.children
        if event.tag.name == "Allocation":
            size = event.extra_fields
            found.append((event.start_time_ns, size.total_allocated, size.alloc_size))
    return found
