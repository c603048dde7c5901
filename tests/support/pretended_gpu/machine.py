"""Machines with pretended GPUs, for `run_ranks`."""

from __future__ import annotations

import pytest

from tests.support.pretended_gpu import compiling
from tests.support.ranks import Machine


def _require() -> None:
    """Compile the device, or skip the test that needs it."""
    try:
        compiling.library()
    except compiling.Unavailable as missing:
        pytest.skip(str(missing))


MACHINE = Machine("nccl", "tests.support.pretended_gpu.preload", {}, prepare=_require)
