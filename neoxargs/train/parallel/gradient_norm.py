"""Global gradient norm and clipping, over all ranks, with each weight counted once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from neoxargs.train.parallel.layers import is_expert
from neoxargs.train.process.mesh import Mesh


def gradient_norm(
    gradients: Sequence[tuple[nn.Parameter, Tensor | None]],
    mesh: Mesh,
    averaged: bool = True,
    partitioned: bool = False,
) -> Tensor:
    """Return the 2-norm over all tensor, pipeline and expert ranks, () in fp32; each weight counts once. Collective.

    averaged: whether gradients are averaged over the data parallel ranks. If not, each rank has different gradients,
    and the norm is the root mean square of the ranks' norms. partitioned: whether each of these ranks has other
    elements of the averages, and of a weight maybe none.
    """
    counted = [
        gradient
        for weight, gradient in gradients
        # Ranks that divide the experts have equal copies of all other weights, which the first of them counts.
        if gradient is not None
        and counts_here(weight, mesh)
        and (partitioned or mesh.expert.rank == 0 or is_expert(weight))
    ]
    total = torch.zeros((), device=gradients[0][0].device)
    if counted:
        # In fp32: the square of an fp16 gradient overflows above 256, and bf16 keeps 8 significant bits of a sum.
        total = torch.stack(torch._foreach_norm(counted, 2, torch.float32)).square().sum()
    # Also on a rank that counts nothing, because the others of its group wait for it.
    for axis in (mesh.tensor, mesh.pipe, mesh.data if partitioned else mesh.expert):
        if axis.size > 1:
            dist.all_reduce(total, group=axis.group)
    if not averaged and mesh.data.size > 1:
        dist.all_reduce(total, group=mesh.data.group)
        total /= mesh.data.size
    return total.sqrt()


def counts_here(weight: nn.Parameter, mesh: Mesh) -> bool:
    """Whether this rank counts this weight, or its slice of it, among all tensor and pipeline ranks."""
    if getattr(weight, "ds_pipe_replicated", False):  # tied to a weight of an earlier stage
        return False
    return mesh.tensor.rank == 0 or getattr(weight, "tensor_model_parallel", False)


def clip_(gradients: list[Tensor], norm: Tensor, longest: float) -> None:
    """Scale the gradients in place to the norm `longest`, if they are longer. norm: () in fp32, of all gradients."""
    if not gradients:  # on a stage that trains nothing
        return
    # The same 1e-6 as in torch's `clip_grad_norm_` and in Megatron-LM; it avoids a division by 0.
    factor = (longest / (norm + 1e-6)).clamp(max=1.0)
    if norm.is_cuda or factor < 1:  # on a GPU, reading the factor would synchronize, so always multiply
        torch._foreach_mul_(gradients, factor)
