"""Gradients that are partial on each tensor parallel rank: those of norms and biases under sequence parallelism.

Every rank applies such a weight to its shard of the sequence. The gradients are summed once per step, in one all-reduce
of all of them, as Megatron-LM does, and not weight by weight in every backward pass.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from neoxargs.train.deepspeed import interface
from neoxargs.train.deepspeed.optimizer_view import before_step, stored_gradient
from neoxargs.train.parallel.communicate import PARTIAL


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

    def sum_over_ranks() -> None:
        gradients = map(stored_gradient, weights)
        present = [gradient.view(-1) for gradient in gradients if gradient is not None]
        if present:  # the same ones on every rank
            together = torch.cat(present)
            dist.all_reduce(together, group=group)
            torch._foreach_copy_(present, torch.split(together, [gradient.numel() for gradient in present]))

    before_step(engine, sum_over_ranks)
