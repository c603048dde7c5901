"""The norm that gradients are clipped by, over all ranks, each weight counted once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn

from neoxargs.train.process.mesh import Mesh


def gradient_norm(gradients: Sequence[tuple[nn.Parameter, Tensor | None]], mesh: Mesh, averaged: bool = True) -> Tensor:
    """2-norm over all tensor and pipeline ranks, () in fp32; each weight counts once.

    averaged: False where data parallel ranks keep gradients of their own; the norm is then their root mean square.
    """
    mine = [gradient for weight, gradient in gradients if gradient is not None and counts_here(weight, mesh)]
    total = torch.zeros((), device=gradients[0][0].device)
    if mine:
        total = torch.stack(torch._foreach_norm(mine, 2, torch.float32)).square().sum()
    for axis in (mesh.tensor, mesh.pipe):
        if axis.size > 1:
            torch.distributed.all_reduce(total, group=axis.group)
    if not averaged and mesh.data.size > 1:
        torch.distributed.all_reduce(total, group=mesh.data.group)
        total /= mesh.data.size
    return total.sqrt()


def counts_here(weight: nn.Parameter, mesh: Mesh) -> bool:
    """Is this the one rank on which this weight, or this slice of it, is counted?"""
    if getattr(weight, "ds_pipe_replicated", False):  # tied to a weight of an earlier stage
        return False
    return mesh.tensor.rank == 0 or getattr(weight, "tensor_model_parallel", False)


def clip(engine: Any, mesh: Mesh) -> None:
    """In place of `engine.clip_fp32_gradients`, between the backward pass and the step."""
    weights = list(engine.module.parameters())
    norm = gradient_norm([(weight, weight.grad) for weight in weights], mesh, averages(engine))
    engine._global_grad_norm = norm
    factor = (engine.gradient_clipping() / (norm + 1e-6)).clamp(max=1.0)
    if norm.is_cuda or factor < 1:  # asking a GPU would make it wait
        torch._foreach_mul_([weight.grad for weight in weights if weight.grad is not None], factor)


def averages(engine: Any) -> bool:
    """Does DeepSpeed average gradients over the data parallel ranks? 1-bit optimizers stop it at some step."""
    return bool(engine.enable_backward_allreduce or getattr(engine, "pipeline_enable_backward_allreduce", False))
