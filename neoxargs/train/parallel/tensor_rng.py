"""Dropout under tensor parallelism: the same mask on every rank outside of a parallel region, different ones inside.

All tensor parallel ranks run with the same default seed, so ordinary dropout agrees by itself. Inside a region the
seed is drawn from that common stream and the rank is mixed in. So there is no state beyond torch's default
generators: activation checkpointing and resumed runs restore those and get the same masks again. (Megatron keeps a
second generator state per rank, on CUDA only, that every such place has to know of.)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from neoxargs.train.process.mesh import Axis


@contextmanager
def different_on_each_rank(axis: Axis, device: torch.device) -> Iterator[None]:
    """Random numbers drawn inside differ between the axis' ranks; the default stream goes on as if none were."""
    if axis.size == 1:
        yield
        return
    common = int(torch.randint(2**62, ()))
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(common + axis.rank)
        yield
