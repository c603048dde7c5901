"""Optimizers that torch does not have, in plain torch: for any device, with and without ZeRO.

They follow torch's conventions: state per parameter, saved and restored through `state_dict`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

if TYPE_CHECKING:
    from neoxargs.config.groups import OptimizerParams


class _PerTensor(Optimizer):
    """Base of optimizers that update each tensor independently."""

    def update(self, weight: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Update one weight and its state in place. group: its parameter group, with `lr` and the other options."""
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self.update(weight, weight.grad, self.state[weight], group)


class Lion(_PerTensor):
    """Lion: every element moves by the learning rate, in the direction of the momentum's sign.

    Chen et al. 2023, arXiv:2302.06675, algorithm 2, with decoupled weight decay.
    """

    def __init__(self, groups: Any, lr: float, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0):
        super().__init__(groups, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def update(self, weight: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        momentum = state.setdefault("momentum", torch.zeros_like(weight))
        (beta1, beta2), lr = group["betas"], group["lr"]
        weight.mul_(1 - lr * group["weight_decay"])
        weight.add_(torch.lerp(gradient, momentum, beta1).sign_(), alpha=-lr)
        momentum.lerp_(gradient, 1 - beta2)


class SM3(_PerTensor):
    """SM3: Adagrad with one accumulator per row and per column instead of one per element.

    Anil et al. 2019, arXiv:1901.11150, algorithm SM3-II. State `slices`: for each dimension, a tensor of the weight's
    size along it, and of size 1 along all others.
    beta: 0 sums the squared gradients; any other value is the decay of their running mean.
    """

    def __init__(self, groups: Any, lr: float, momentum: float = 0.0, beta: float = 0.0, eps: float = 1e-30):
        super().__init__(groups, {"lr": lr, "momentum": momentum, "beta": beta, "eps": eps})

    def update(self, weight: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        beta = group["beta"]
        shapes = [[size if d == kept else 1 for d, size in enumerate(weight.shape)] for kept in range(weight.dim())]
        slices = state.setdefault("slices", [gradient.new_zeros(shape) for shape in shapes])
        bound = slices[0]
        for other in slices[1:]:
            # The tightest bound: each accumulator bounds all elements of its row or column (line 5 of the algorithm).
            bound = torch.minimum(bound, other)
        squares = (bound * beta if beta else bound) + gradient.square() * ((1 - beta) if beta else 1)
        for dimension, largest in enumerate(slices):
            others = [d for d in range(weight.dim()) if d != dimension]
            now = squares.amax(others, keepdim=True) if others else squares
            largest.copy_(now if beta else torch.maximum(largest, now))
        step = gradient * (squares + group["eps"]).rsqrt_()
        if group["momentum"]:
            step = state.setdefault("momentum", torch.zeros_like(weight)).lerp_(step, 1 - group["momentum"])
        weight.add_(step, alpha=-group["lr"])


class Madgrad(_PerTensor):
    """MADGRAD: dual averaging around the initial weights, with a cube root in place of Adagrad's square root.

    Defazio and Jelassi 2021, arXiv:2101.11075, algorithm 1, with decoupled weight decay as in GPT-NeoX.
    """

    def __init__(self, groups: Any, lr: float, momentum: float = 0.9, weight_decay: float = 0.0, eps: float = 1e-6):
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "eps": eps})

    def update(self, weight: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        if not state:
            state.update(step=0, start=weight.clone(), total=torch.zeros_like(weight), squares=torch.zeros_like(weight))
        # eps is added as in the authors' code, so that gradients count while a warm-up's learning rate is 0.
        lr = group["lr"] + group["eps"]
        size = lr * (state["step"] + 1) ** 0.5
        state["step"] += 1
        state["total"].add_(gradient, alpha=size)
        state["squares"].addcmul_(gradient, gradient, value=size)
        root = state["squares"].pow(1 / 3).add_(group["eps"])
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        weight.lerp_(state["start"].addcdiv(state["total"], root, value=-1), 1 - group["momentum"])


def _lion(groups: list[dict[str, Any]], params: OptimizerParams) -> Optimizer:
    beta1, beta2 = params.betas or (0.9, 0.99)
    return Lion(groups, params.lr or 0.0, (beta1, beta2))


def _sm3(groups: list[dict[str, Any]], params: OptimizerParams) -> Optimizer:
    eps = 1e-30 if params.eps is None else params.eps
    return SM3(groups, params.lr or 0.0, params.momentum or 0.0, params.beta, eps)


def _madgrad(groups: list[dict[str, Any]], params: OptimizerParams) -> Optimizer:
    momentum = 0.9 if params.momentum is None else params.momentum
    eps = 1e-6 if params.eps is None else params.eps
    return Madgrad(groups, params.lr or 0.0, momentum, eps=eps)


#: `optimizer.type` in lower case -> function that builds it from parameter groups and `optimizer.params`.
BUILDERS: dict[str, Callable[[list[dict[str, Any]], OptimizerParams], Optimizer]] = {
    "lion": _lion,
    "madgrad_wd": _madgrad,
    "sm3": _sm3,
}
