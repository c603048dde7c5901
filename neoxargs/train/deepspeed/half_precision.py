"""fp16 without ZeRO, where DeepSpeed has only half of a loss scale, and a first step that nobody took."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from neoxargs.train.deepspeed.gradient_norm import averages, gradient_norm
from neoxargs.train.process.mesh import Mesh


class LossScale:
    """Multiplies losses on their way to `engine.backward`; knows by what, for the scale moves before it is undone."""

    def __init__(self, engine: Any) -> None:
        self.state = engine.optimizer.loss_scale_config
        self.used = 1.0
        if hasattr(engine, "_INSTRUCTION_MAP"):
            _scale_in_pipeline(engine, self)
        else:
            backward = engine.backward
            engine.backward = lambda loss: backward(loss * self.next())

    def next(self) -> float:
        """What the loss of the backward pass about to begin is multiplied by."""
        self.used = float(self.state.cur_scale) if self.state.use_grad_scaling else 1.0
        return self.used

    @contextmanager
    def as_used(self) -> Iterator[None]:
        moved, self.state.cur_scale = self.state.cur_scale, self.used
        yield
        self.state.cur_scale = moved


def _scale_in_pipeline(engine: Any, scale: LossScale) -> None:
    """The pipeline engine looks its methods up in a table; the loss is the last stage's, the gradients everybody's."""
    from deepspeed.runtime.pipe.schedule import BackwardPass

    backward = engine._INSTRUCTION_MAP[BackwardPass]

    def scaled(here: Any, buffer_id: int) -> None:
        factor = scale.next()
        if here.is_last_stage():
            here.loss = here.loss * factor
        backward(here, buffer_id)

    engine._INSTRUCTION_MAP = {**engine._INSTRUCTION_MAP, BackwardPass: scaled}


class Hysteresis:
    """Lets so many overflows pass before the scale is halved; counts as DeepSpeed's scaler of ZeRO does.

    What is left of them is kept under that one's name beside the scale, and saved with it.
    """

    def __init__(self, optimizer: Any, overflows: int, consecutive: bool) -> None:
        self.state, self.update = optimizer.loss_scale_config, optimizer._update_scale
        self.saved, self.restore = optimizer.state_dict, optimizer.load_state_dict
        self.overflows = self.state.cur_hysteresis = overflows
        self.consecutive = consecutive
        if self.state.dynamic_loss_scale:
            optimizer._update_scale = self
            optimizer.state_dict, optimizer.load_state_dict = self.state_dict, self.load_state_dict

    def state_dict(self) -> dict[str, Any]:
        return {**self.saved(), "cur_hysteresis": self.state.cur_hysteresis}

    def load_state_dict(self, state: dict[str, Any], *options: Any, **more: Any) -> None:
        self.restore(state, *options, **more)
        self.state.cur_hysteresis = state.get("cur_hysteresis", self.overflows)

    def __call__(self, overflow: bool) -> None:
        before = self.state.cur_scale
        if overflow and self.state.cur_hysteresis > 1:
            self.state.cur_hysteresis -= 1
            self.state.last_overflow_iter = self.state.cur_iter
            self.state.cur_iter += 1
            return
        if overflow and before == self.state.min_loss_scale:
            raise OverflowError(f"gradients overflow fp16 at the smallest loss scale ({before:g})")
        self.update(overflow)
        if not overflow and (self.consecutive or self.state.cur_scale > before):
            self.state.cur_hysteresis = self.overflows


def replace_norm(engine: Any, scale: LossScale, mesh: Mesh) -> None:
    """The gradients are those of the fp32 copies, still multiplied by the loss scale."""
    optimizer = engine.optimizer
    unscale_and_clip = optimizer.unscale_and_clip_grads
    pairs = [
        (weight, copy)
        for weights, copies in zip(optimizer.fp16_groups, optimizer.fp32_groups, strict=True)
        for weight, copy in zip(weights, copies, strict=True)
    ]

    def with_our_norm(_: Tensor, apply_scale: bool = True) -> Any:
        norm = gradient_norm([(weight, copy.grad) for weight, copy in pairs], mesh, averages(engine))
        optimizer._global_grad_norm = norm / scale.used
        with scale.as_used():
            return unscale_and_clip(norm, apply_scale)

    optimizer.unscale_and_clip_grads = with_our_norm


def forget_first_step(optimizer: Any) -> None:
    """Empty states, and fp32 copies equal to the weights again."""
    optimizer.optimizer.state.clear()
    for weights, copies in zip(optimizer.fp16_groups, optimizer.fp32_groups, strict=True):
        for weight, copy in zip(weights, copies, strict=True):
            copy.data.copy_(weight.data)
