"""How much memory a process takes."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from typing import Any

import torch

from neoxargs.train.setup import on_gpu


def peak() -> int:
    """Bytes this process has taken at most so far: tensors on a GPU; on a CPU everything, libraries included."""
    if on_gpu():
        return torch.cuda.max_memory_allocated()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def peak_of(work: Callable[[], object]) -> int:
    """Bytes of tensors that `work` had allocated at the same time at most, beside those that were there before."""
    if on_gpu():
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        work()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    assert profiler.profiler is not None
    return max(_allocated(profiler.profiler.kineto_results), default=0)


def _allocated(results: Any) -> list[int]:
    """Bytes allocated in all, after every allocation and release."""
    found, events = [], list(results.experimental_event_tree())
    while events:
        event = events.pop()
        events += event.children
        if event.tag.name == "Allocation":
            found.append(event.extra_fields.total_allocated)
    return found
