"""Dropout and the addition of the residual as one kernel, for `bias_dropout_fusion`.

torch.compile makes it, for GPUs: there each pass over memory that is saved counts. On CPUs torch's own two kernels
are faster than what it makes of them (30 ms against 49 ms for 1.5 M numbers, forward and backward, on two cores), so
they stay. The bias of a matrix product is added inside the product anyway.
"""

from __future__ import annotations

import os
import shutil
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neoxargs.train.parallel.tensor_rng import different_on_each_rank
from neoxargs.train.process.mesh import ALONE, Axis


class DropoutAdd(nn.Module):
    """(x, residual) -> residual + dropout(x), all of one shape.

    shards: ranks of which each has other tokens, and so another mask.
    """

    def __init__(self, probability: float, fused: bool, shards: Axis = ALONE) -> None:
        super().__init__()
        self.probability, self.fused, self.shards = probability, fused, shards

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        if not (self.training and self.probability):
            return residual + x
        with different_on_each_rank(self.shards, x.device):
            if self.fused and worthwhile(x.device.type):
                return _compiled()(x, residual, self.probability)  # type: ignore[no-any-return]
            return _dropout_add(x, residual, self.probability)


@cache
def worthwhile(device: str) -> bool:
    """Does compiling pay on this kind of device, and is there what it takes? Without, the result is the same."""
    if device != "cuda":
        return False
    from torch.utils._triton import has_triton

    # Triton builds a little C program for each kernel.
    compiler = any(shutil.which(name) for name in (os.environ.get("CC", "cc"), "gcc", "clang"))
    return compiler and has_triton()


@cache
def _compiled() -> Any:
    return torch.compile(_dropout_add)


def _dropout_add(x: Tensor, residual: Tensor, probability: float) -> Tensor:
    return residual + F.dropout(x, probability)
