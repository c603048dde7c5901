"""Gives this process pretended GPUs. `start()` must be the first that a process does with torch."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from typing import Any

from tests.support.pretended_gpu import compiling


def start() -> None:
    """Load the device, then torch, and let torch's Python find it."""
    assert "torch" not in sys.modules, "torch keeps the first CUDA that it finds, so the device must be there before it"
    os.environ.pop("DS_ACCELERATOR", None)  # DeepSpeed shall find the GPU by itself
    device()
    from tests.support.pretended_gpu import cuda, nccl

    cuda.install()
    nccl.install()


@cache
def device() -> Any:
    """The compiled device of this process."""
    ctypes.CDLL(str(compiling.torch_folder() / "lib" / "libtorch_cpu.so"), mode=ctypes.RTLD_GLOBAL)
    found = ctypes.CDLL(str(compiling.library()), mode=ctypes.RTLD_GLOBAL)
    found.pretended_allocated.restype = found.pretended_peak.restype = ctypes.c_int64
    found.pretended_listen.restype = None
    return found
