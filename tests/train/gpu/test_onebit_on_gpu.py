"""Compression of the 1-bit optimizers on a GPU."""

from __future__ import annotations

import pytest
import torch

from tests.support import simulated_gpu
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.compiler


def compressed() -> tuple[str, bool]:
    """The waits of the host, and whether the signs survive."""
    from neoxargs.train.deepspeed.onebit import _compress, _unpack
    from tests.support.simulated_gpu.waits import listed, recorded

    values = torch.randn(64, device="cuda")
    error = torch.zeros_like(values)
    with recorded() as waits:
        packed, _ = _compress(values, error)
        signs = _unpack(packed)
    return listed(waits), torch.equal(signs.cpu(), values.cpu().sign())


def test_the_host_does_not_wait() -> None:
    assert run_ranks(compressed, 1, on=simulated_gpu.MACHINE)[0] == ("", True)
