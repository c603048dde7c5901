"""A step of DeepSpeed's bf16 optimizer that does not wait for the GPU.

The optimizer accumulates gradients in fp32; every rank has all of them, and updates its partition of the fp32 weights.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from neoxargs.train.deepspeed.gradient_norm import gradient_norm, shorten
from neoxargs.train.process.mesh import Mesh


def install(engine: Any, mesh: Mesh) -> None:
    """Replace the step of an engine whose optimizer is DeepSpeed's bf16 optimizer."""
    from deepspeed.runtime.bf16_optimizer import BF16_Optimizer

    if isinstance(engine.optimizer, BF16_Optimizer) and engine.optimizer.grad_acc_dtype is torch.float32:
        engine.optimizer.step = partial(_step, engine.optimizer, mesh)


@torch.no_grad()
def _step(optimizer: Any, mesh: Mesh) -> None:
    """Clip by the norm over all ranks, update the weights, and clear the gradients."""
    pairs = [
        (weight, gradient)
        for weights, gradients in zip(optimizer.bf16_groups, optimizer.fp32_groups_gradients, strict=True)
        for weight, gradient in zip(weights, gradients, strict=True)
    ]
    optimizer._global_grad_norm = gradient_norm(pairs, mesh)
    if optimizer.clip_grad > 0:
        shorten([gradient for _, gradient in pairs], optimizer._global_grad_norm, optimizer.clip_grad)
    partitions = optimizer.fp32_groups_flat_partition
    for partition, gradient in zip(partitions, optimizer.fp32_groups_gradient_flat_partition, strict=True):
        partition.grad = gradient
    optimizer.optimizer.step()
    optimizer._lazy_init_hp_params_optimizer_state()
    optimizer.update_lp_params()
    optimizer.clear_hp_grads()
