"""What DeepSpeed 0.19 gets wrong, put right from outside.

The norm that gradients are clipped by: DeepSpeed takes "not split by tensor parallelism" for "repeated on every
other rank", so biases and norms of all pipeline stages but the first are left out of it, and tied embeddings count
twice. A run with pipeline stages would be clipped otherwise than one without.

The loss scale of fp16: see loss_scale.py.

The first step in fp16 and bf16: to allocate the optimizer's state, DeepSpeed lets it step on zero gradients. That
decays the weights once at the full learning rate, and Adam's bias corrections are one step ahead ever after.

ZeRO-3 on CPUs: weights are gathered in many transfers of which only the last is waited for. NCCL does them in order,
gloo does not, and hands out weights that have not arrived.

Activation checkpointing on CPUs: a stream is asked for, which is never used and of which CPUs have none.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn

from neoxargs.train.deepspeed.loss_scale import Hysteresis, LossScale
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


@cache
def await_every_gather() -> None:
    """Gather the weights of ZeRO-3 one after another; to be called once deepspeed is imported, for gloo."""
    from deepspeed.runtime.zero.partition_parameters import Init

    at_once = Init._allgather_params_coalesced

    def each(init: Init, weights: Sequence[nn.Parameter], hierarchy: int = 0, quantize: bool = False) -> None:
        for weight in weights:
            at_once(init, [weight], hierarchy, quantize)

    Init._allgather_params_coalesced = each


@cache
def no_streams_on_cpu() -> None:
    """Let DeepSpeed's checkpoint function run on a CPU."""
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

    CPU_Accelerator.Stream = property(lambda _: lambda device=None: None)


def install(engine: Any, mesh: Mesh) -> None:
    """Correct a DeepSpeed engine without ZeRO that has taken no step yet."""
    from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer

    engine.clip_fp32_gradients = lambda: _clip(engine, mesh)
    if isinstance(engine.optimizer, FP16_UnfusedOptimizer):
        arguments = engine.dynamic_loss_scale_args()
        Hysteresis(engine.optimizer, arguments["delayed_shift"], arguments["consecutive_hysteresis"])
        _replace_norm(engine, LossScale(engine), mesh)
        _forget_first_step(engine.optimizer)


def counts_here(weight: nn.Parameter, mesh: Mesh) -> bool:
    """Is this the one rank on which this weight, or this slice of it, is counted?"""
    if getattr(weight, "ds_pipe_replicated", False):  # tied to a weight of an earlier stage
        return False
    return mesh.tensor.rank == 0 or getattr(weight, "tensor_model_parallel", False)


def _clip(engine: Any, mesh: Mesh) -> None:
    weights = list(engine.module.parameters())
    norm = gradient_norm([(weight, weight.grad) for weight in weights], mesh, _averages(engine))
    engine._global_grad_norm = norm
    factor = (engine.gradient_clipping() / (norm + 1e-6)).clamp(max=1.0)
    if norm.is_cuda or factor < 1:  # asking a GPU would make it wait
        torch._foreach_mul_([weight.grad for weight in weights if weight.grad is not None], factor)


def _averages(engine: Any) -> bool:
    """Does DeepSpeed average gradients over the data parallel ranks? 1-bit optimizers stop it at some step."""
    return bool(engine.enable_backward_allreduce or getattr(engine, "pipeline_enable_backward_allreduce", False))


def _replace_norm(engine: Any, scale: LossScale, mesh: Mesh) -> None:
    """The gradients are those of the fp32 copies, still multiplied by the loss scale."""
    optimizer = engine.optimizer
    unscale_and_clip = optimizer.unscale_and_clip_grads
    pairs = [
        (weight, copy)
        for weights, copies in zip(optimizer.fp16_groups, optimizer.fp32_groups, strict=True)
        for weight, copy in zip(weights, copies, strict=True)
    ]

    def with_our_norm(_: Tensor, apply_scale: bool = True) -> Any:
        norm = gradient_norm([(weight, copy.grad) for weight, copy in pairs], mesh, _averages(engine))
        optimizer._global_grad_norm = norm / scale.used
        with scale.as_used():
            return unscale_and_clip(norm, apply_scale)

    optimizer.unscale_and_clip_grads = with_our_norm


def _forget_first_step(optimizer: Any) -> None:
    optimizer.optimizer.state.clear()
    for weights, copies in zip(optimizer.fp16_groups, optimizer.fp32_groups, strict=True):
        for weight, copy in zip(weights, copies, strict=True):
            copy.data.copy_(weight.data)
