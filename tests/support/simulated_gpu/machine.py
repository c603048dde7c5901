"""Machines with simulated GPUs, for `run_ranks`."""

from __future__ import annotations

import pytest

from tests.support.ranks import Machine
from tests.support.simulated_gpu import compiling


def _require() -> None:
    """Compile the device, or skip the test that needs it."""
    try:
        compiling.library()
    except compiling.Unavailable as missing:
        pytest.skip(str(missing))


MACHINE = Machine("nccl", "tests.support.simulated_gpu.preload", {}, prepare=_require)
