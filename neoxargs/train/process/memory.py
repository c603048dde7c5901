"""Memory use of this process."""

from __future__ import annotations

import resource
import sys

import torch

from neoxargs.train.process.setup import on_gpu


def peak() -> int:
    """Return the peak memory of this process in bytes: of tensors on a GPU; on a CPU of the whole process."""
    if on_gpu():
        return torch.cuda.max_memory_allocated()
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB on Linux, bytes on macOS
    return resident if sys.platform == "darwin" else resident * 1024
