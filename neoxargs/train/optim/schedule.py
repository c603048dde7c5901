"""The learning rate as a function of the iteration, as GPT-NeoX and Megatron define it.

Iteration n (the first is 0) runs with `rate(n)`. Warm-up starts at 0, so with a warm-up the very first
update moves nothing; that is GPT-NeoX's behaviour and resumed runs depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from neoxargs.problems import Problem, Problems


class Optimizer(Protocol):
    """What a schedule needs of an optimizer."""

    param_groups: list[dict[str, Any]]


@dataclass(frozen=True)
class Curve:
    """Warm-up to `lr`, then a decay that has run its course at `decay_iters`.

    The formulas are those of GPT-NeoX (`megatron/learning_rates.py`, 2024); the cosine is Loshchilov and Hutter's
    (https://arxiv.org/abs/1608.03983). Beyond `decay_iters` the rate stays at `min_lr`, where GPT-NeoX's cosine
    climbs again.
    """

    style: str
    lr: float
    min_lr: float
    warmup_iters: float
    decay_iters: int

    def rate(self, iteration: int) -> float:
        if iteration <= self.warmup_iters and self.warmup_iters > 0:
            return self.lr * iteration / self.warmup_iters
        span = max(self.decay_iters - self.warmup_iters, 1e-9)
        return max(_DECAYS[self.style](self, (iteration - self.warmup_iters) / span), self.min_lr)


def _cosine(curve: Curve, progress: float) -> float:
    return curve.min_lr + (curve.lr - curve.min_lr) / 2 * (math.cos(math.pi * min(progress, 1)) + 1)


#: 0.693 = ln 2: the exponential style halves the rate over the decay.
_DECAYS: dict[str, Callable[[Curve, float], float]] = {
    "constant": lambda curve, progress: curve.lr,
    "linear": lambda curve, progress: curve.lr * (1 - progress),
    "cosine": _cosine,
    "exponential": lambda curve, progress: curve.lr * math.exp(-0.693 * progress),
}


class Schedule:
    """Sets the rate of every parameter group; DeepSpeed steps it after each update it did not skip.

    reload: what wins when a checkpoint was written with another curve: `ours`, `theirs` or `neither`.
    """

    def __init__(self, optimizer: Optimizer, curve: Curve, reload: str = "neither") -> None:
        self.optimizer, self.curve, self.reload = optimizer, curve, reload
        self._move_to(0)

    def step(self) -> None:
        self._move_to(self.iteration + 1)

    def get_lr(self) -> list[float]:
        """The rate of the next update, one per parameter group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    get_last_lr = get_lr

    def state_dict(self) -> dict[str, Any]:
        return {"iteration": self.iteration, **asdict(self.curve)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        saved = Curve(**{name: state[name] for name in asdict(self.curve)})
        if self.reload == "neither":
            _require_same(self.curve, saved)
        if self.reload == "theirs":
            self.curve = saved
        self._move_to(state["iteration"])

    def _move_to(self, iteration: int) -> None:
        self.iteration = iteration
        rate = self.curve.rate(iteration)
        for group in self.optimizer.param_groups:
            group["lr"] = rate / group.get("width_mult", 1)  # muP: wider layers take smaller steps


def _require_same(ours: Curve, saved: Curve) -> None:
    hint = (
        "`override_lr_scheduler: true` follows this run's values, `use_checkpoint_lr_scheduler: true` the checkpoint's"
    )
    theirs = asdict(saved)
    different = [(name, mine, theirs[name]) for name, mine in asdict(ours).items() if mine != theirs[name]]
    if different:
        raise Problems(
            Problem(f"learning rate schedule: {name} is {mine} here and {other} in the checkpoint", hint=hint)
            for name, mine, other in different
        )
