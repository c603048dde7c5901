"""Corrections of DeepSpeed's optimizers for half precision.

They correct the loss scale, the hysteresis, the gradient norm and the first step of the fp16 optimizer without ZeRO,
when the loss scale of ZeRO grows, and the step of the bf16 optimizer.

patches.py describes each fault.
"""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from neoxargs.train.deepspeed import interface
from neoxargs.train.deepspeed.buckets import reduction_of
from neoxargs.train.deepspeed.optimizer_view import own_elements
from neoxargs.train.parallel.gradient_norm import clip_, gradient_norm
from neoxargs.train.process.mesh import Mesh


class LossScale:
    """Multiplies the loss by the loss scale before `engine.backward`.

    used: the scale of the last backward pass, by which the gradients must be divided. DeepSpeed 0.19 updates its own
    scale before it divides them.
    """

    def __init__(self, engine: interface.PlainEngine | interface.PipelineEngine) -> None:
        self.state = engine.optimizer.loss_scale_config
        self.used = 1.0
        if isinstance(engine, interface.PipelineEngine):
            _scale_in_pipeline(engine, self)
        else:
            backward = engine.backward
            interface.replace(engine, backward=lambda loss: backward(loss * self.next()))

    def next(self) -> float:
        """Return the scale for the next backward pass, and remember it in `used`."""
        self.used = float(self.state.cur_scale) if self.state.use_grad_scaling else 1.0
        return self.used


def _scale_in_pipeline(engine: interface.PipelineEngine, scale: LossScale) -> None:
    """Scale the loss on the last stage. Every stage remembers the scale, because all divide their gradients by it."""
    from deepspeed.runtime.pipe.schedule import BackwardPass

    # The pipeline engine calls its methods through this table, so replacing a method has no effect.
    backward = engine._INSTRUCTION_MAP[BackwardPass]

    def scaled(engine: interface.PipelineEngine, buffer_id: int) -> None:
        factor = scale.next()
        if engine.is_last_stage():
            engine.loss = engine.loss * factor
        backward(engine, buffer_id)

    engine._INSTRUCTION_MAP = {**engine._INSTRUCTION_MAP, BackwardPass: scaled}


class Hysteresis:
    """Halves the dynamic loss scale only after a number of overflows, like the loss scaler of DeepSpeed's ZeRO.

    overflows: `hysteresis`. consecutive: `consecutive_hysteresis`; every step without overflow resets the count.
    The remaining count is stored and saved as `cur_hysteresis`, as ZeRO's scaler does.
    """

    def __init__(self, optimizer: interface.Fp16, overflows: int, consecutive: bool) -> None:
        self.state, self.update = optimizer.loss_scale_config, optimizer._update_scale
        self.saved, self.restore = optimizer.state_dict, optimizer.load_state_dict
        self.overflows = self.state.cur_hysteresis = overflows
        self.consecutive = consecutive
        if self.state.dynamic_loss_scale:
            interface.replace(optimizer, _update_scale=self, state_dict=self.state_dict)
            interface.replace(optimizer, load_state_dict=self.load_state_dict)

    def state_dict(self) -> dict[str, Any]:
        return {**self.saved(), "cur_hysteresis": self.state.cur_hysteresis}

    def load_state_dict(self, state: dict[str, Any], *arguments: Any, **keywords: Any) -> None:
        self.restore(state, *arguments, **keywords)
        self.state.cur_hysteresis = state.get("cur_hysteresis", self.overflows)

    def __call__(self, overflow: bool) -> None:
        """Update the loss scale after a step; raise OverflowError if the smallest scale overflows."""
        before = self.state.cur_scale
        if overflow and self.state.cur_hysteresis > 1:
            self.state.cur_hysteresis -= 1
            # What `_update_scale` would record of an overflow; the count of steps without one starts here.
            self.state.last_overflow_iter = self.state.cur_iter
            self.state.cur_iter += 1
            return
        # As ZeRO's scaler does: otherwise all later steps could be skipped, and the run would go on without training.
        if overflow and before == self.state.min_loss_scale:
            raise OverflowError(f"gradients overflow fp16 even at the minimum loss scale ({before:g})")
        self.update(overflow)
        if not overflow and (self.consecutive or self.state.cur_scale > before):
            self.state.cur_hysteresis = self.overflows


def replace_norm(engine: interface.Engine, scale: LossScale, mesh: Mesh) -> None:
    """Let the optimizer clip by our norm. The gradients are those of the fp32 copies, multiplied by the loss scale."""
    optimizer: interface.Fp16 = engine.optimizer
    unscale_and_clip = optimizer.unscale_and_clip_grads
    pairs = list(zip(chain(*optimizer.fp16_groups), chain(*optimizer.fp32_groups), strict=True))

    def with_our_norm(_: Tensor, apply_scale: bool = True) -> Any:
        norm = gradient_norm(
            [(weight, copy.grad) for weight, copy in pairs], mesh, interface.averages_gradients(engine)
        )
        # The engine reports this norm, so without the loss scale; `unscale_and_clip` expects it with the scale.
        optimizer._global_grad_norm = norm / scale.used
        # By this time `_update_scale` has set `cur_scale` for the next step.
        with interface.replaced(scale.state, cur_scale=scale.used):
            return unscale_and_clip(norm, apply_scale)

    interface.replace(optimizer, unscale_and_clip_grads=with_our_norm)


def forget_first_step(optimizer: interface.Fp16) -> None:
    """Undo the step on zero gradients: clear the optimizer's state, reset the fp32 copies to the weights."""
    optimizer.optimizer.state.clear()
    for weight, copy in zip(chain(*optimizer.fp16_groups), chain(*optimizer.fp32_groups), strict=True):
        copy.data.copy_(weight.data)


def grow_scale_after_step(optimizer: Any) -> None:
    """Let ZeRO divide gradients by the loss scale that they were multiplied by; other optimizers are not changed.

    A step without overflow updates the scale after it is taken. A step with overflow is skipped, so its order does not
    matter.
    """
    if not isinstance(optimizer, interface.Zero12 | interface.Zero3):
        return
    update, take = optimizer._update_scale, optimizer.step

    def update_after_overflow(has_overflow: bool = False) -> None:
        if has_overflow:
            update(has_overflow)

    def take_and_update(*arguments: Any, **keywords: Any) -> None:
        take(*arguments, **keywords)
        if optimizer.overflow:
            return
        before = optimizer.loss_scale
        update(False)
        # What quantized gradients left over is scaled like the gradients. DeepSpeed 0.19.8 has no `zeropp_loco_param`.
        if rescale := getattr(optimizer, "_loco_err_buf_update", None):
            rescale(False, optimizer.loss_scale / before)

    interface.replace(optimizer, _update_scale=update_after_overflow, step=take_and_update)


def step_without_waiting(engine: interface.Engine, mesh: Mesh) -> None:
    """Let DeepSpeed's bf16 optimizer, if an engine has it, take its steps without waiting for the GPU.

    It accumulates gradients in fp32, and every rank updates its partition of the fp32 weights.
    """
    optimizer = engine.optimizer
    if isinstance(optimizer, interface.Bf16) and optimizer.grad_acc_dtype is torch.float32:
        interface.replace(optimizer, step=partial(_bf16_step, optimizer, mesh))


@torch.no_grad()
def _bf16_step(optimizer: interface.Bf16, mesh: Mesh) -> None:
    """Clip by the norm over all ranks, update the weights, and clear the gradients."""
    own = optimizer.fp32_groups_gradient_flat_partition
    in_buckets = reduction_of(optimizer) is not None  # then each rank has the means of its own partitions only
    pairs = list(zip(chain(*optimizer.bf16_groups), chain(*optimizer.fp32_groups_gradients), strict=True))
    parts = [(weight, own_elements(weight, gradient)) for weight, gradient in pairs] if in_buckets else pairs
    norm = gradient_norm(parts, mesh, partitioned=in_buckets)
    vars(optimizer)["_global_grad_norm"] = norm  # which the engine reads; DeepSpeed's own step sets it first
    if optimizer.clip_grad > 0:
        clip_(list(own) if in_buckets else [gradient for _, gradient in pairs], norm, optimizer.clip_grad)
    partitions = optimizer.fp32_groups_flat_partition
    for partition, gradient in zip(partitions, own, strict=True):
        # Both are fp32 (see `step_without_waiting`), so the cast in DeepSpeed's own step is not needed.
        partition.grad = gradient
    optimizer.optimizer.step()
    # Acts in the first step only, after which optimizer states exist and can be linked to their weights.
    optimizer._lazy_init_hp_params_optimizer_state()
    # Casts this rank's fp32 partition to bf16 and gathers those of the other data parallel ranks.
    optimizer.update_lp_params()
    optimizer.clear_hp_grads()
