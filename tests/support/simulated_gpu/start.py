"""Gives this process simulated GPUs. Call `start()` before torch is imported."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from typing import Any

from tests.support.simulated_gpu import compiling

#: A function that is told of operations that make the host wait.
LISTENER = ctypes.CFUNCTYPE(None, ctypes.c_char_p)


def start() -> None:
    """Load the device, then torch, and install the device's Python side."""
    assert "torch" not in sys.modules, "torch looks for CUDA once, so the device must be loaded before it"
    os.environ.pop("DS_ACCELERATOR", None)  # DeepSpeed detects the GPU
    # Nothing runs a compiled kernel here, so code must take the path without Triton, also where Triton is installed.
    os.environ["TORCHINDUCTOR_TRITON_DISABLE_DEVICE_DETECTION"] = "1"
    device()
    from tests.support.simulated_gpu import cuda, nccl

    cuda.install()
    nccl.install()


@cache
def device() -> Any:
    """Return the compiled device, loaded into this process."""
    ctypes.CDLL(str(compiling.torch_folder() / "lib" / "libtorch_cpu.so"), mode=ctypes.RTLD_GLOBAL)
    found = ctypes.CDLL(str(compiling.library()), mode=ctypes.RTLD_GLOBAL)
    found.simulated_allocated.restype = found.simulated_peak.restype = ctypes.c_int64
    found.simulated_listen.restype = None
    return found
