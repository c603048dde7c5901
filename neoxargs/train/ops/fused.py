"""Dropout and residual addition in one kernel, for `bias_dropout_fusion`.

torch.compile makes the kernel for GPUs, where it saves passes over memory. On CPUs torch's two separate kernels are
used, because they are faster than the compiled one (30 ms against 49 ms for 1.5 M elements, forward and backward, on
two cores). The bias of a linear layer needs no fusion: the matrix product adds it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neoxargs.train.parallel.tensor_rng import different_on_each_rank
from neoxargs.train.process.mesh import ALONE, Axis


class DropoutAdd(nn.Module):
    """residual + dropout(x), for x and residual of the same shape.

    sequence: sequence parallel ranks, whose dropout masks must differ because each has other tokens.
    """

    def __init__(self, probability: float, fused: bool, sequence: Axis = ALONE) -> None:
        super().__init__()
        self.probability, self.fused, self.sequence = probability, fused, sequence

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        if not (self.training and self.probability):
            return residual + x
        with different_on_each_rank(self.sequence, x.device):
            # As a part of a larger graph it is compiled with that, and asking for a compiler would break the graph.
            if self.fused and not torch.compiler.is_compiling() and should_compile(x.device.type):
                return _compiled()(x, residual, self.probability)
            return _dropout_add(x, residual, self.probability)


@cache
def should_compile(device: str) -> bool:
    """Whether compiling pays on this type of device and Triton and a C compiler are there; the result is the same."""
    if device != "cuda":
        return False
    from torch.utils._triton import has_triton

    # Triton compiles a small C program to launch each kernel.
    compiler = any(shutil.which(name) for name in (os.environ.get("CC", "cc"), "gcc", "clang"))
    return compiler and has_triton()


@cache
def _compiled() -> Callable[[Tensor, Tensor, float], Tensor]:
    return torch.compile(_dropout_add)


def _dropout_add(x: Tensor, residual: Tensor, probability: float) -> Tensor:
    return residual + F.dropout(x, probability)
