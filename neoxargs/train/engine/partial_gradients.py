"""Gradients that are partial on each tensor parallel rank: those of norms and biases under sequence parallelism.

Every rank applies such a weight to its shard of the sequence. The gradients are summed once per step, in one all-reduce
of all of them, as Megatron-LM does, and not weight by weight in every backward pass.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from neoxargs.train.deepspeed import interface
from neoxargs.train.deepspeed.optimizer_view import before_step, stored_gradient
from neoxargs.train.parallel.communicate import PARTIAL
from neoxargs.train.process.collectives import all_reduce


def sum_once_per_step(engine: interface.Engine) -> None:
    """Replace the hooks that sum partial gradients in the backward pass. Call before the engine's first step.

    They stay where DeepSpeed keeps gradients elsewhere than on the device in one piece: ZeRO-3, and host memory.
    """
    weights = [weight for weight in engine.module.parameters() if hasattr(weight, PARTIAL)]
    offload = engine.zero_offload_optimizer()
    if not weights or engine.zero_optimization_stage() == 3 or (offload is not None and offload.device != "none"):
        return
    group = getattr(weights[0], PARTIAL).group
    for weight in weights:
        getattr(weight, PARTIAL).hook.remove()
    before_step(engine, lambda: _sum([stored_gradient(weight) for weight in weights], group))


def _sum(gradients: list[Tensor | None], group: dist.ProcessGroup) -> None:
    """Sum the gradients over the ranks, in place. Every rank has the same ones."""
    present = [gradient.view(-1) for gradient in gradients if gradient is not None]
    if not present:
        return
    together = torch.cat(present)
    all_reduce(together, group=group)
    sizes = [gradient.numel() for gradient in present]
    torch._foreach_copy_(present, torch.split(together, sizes))
