"""Random numbers for dropout under tensor parallelism: equal on all ranks outside parallel regions, different inside.

All tensor parallel ranks have the same default seed, so dropout outside a region has equal masks. Inside a region the
seed is a number drawn from that common stream plus the rank. No state exists beyond torch's default generators:
activation checkpointing and resumed runs restore those and get the same masks. (Megatron keeps a second generator
state per rank, on CUDA only, which checkpointing and resuming must handle separately.)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from neoxargs.train.process.mesh import Axis


@contextmanager
def different_on_each_rank(axis: Axis, device: torch.device) -> Iterator[None]:
    """Make random numbers drawn inside differ between the axis' ranks, and restore the default stream afterwards."""
    if axis.size == 1:
        yield
        return
    common = int(torch.randint(2**62, ()))  # below 2**63, so that adding the rank cannot overflow
    devices = [device] if device.type == "cuda" else []
    # fork_rng restores the generators at the end, so that all ranks continue with the common stream.
    with torch.random.fork_rng(devices):
        torch.manual_seed(common + axis.rank)
        yield
