"""LAMB, whichever ranks have a weight's elements.

Its step for a weight is as long as `lr` of that weight. Under tensor parallelism and ZeRO an optimizer's tensor is a
slice of a weight or a row of parts of many; their norms are added up to those of whole weights, once per step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from neoxargs.train.deepspeed.optimizer_layout import optimizer_layout
from neoxargs.train.parallel.pipeline import named_weights
from neoxargs.train.process.mesh import ALONE, Mesh


class Part(NamedTuple):
    """Elements of one weight that lie next to each other in an optimizer's tensor."""

    weight: int
    """Its number in the model."""
    start: int
    length: int

    def of(self, x: Tensor) -> Tensor:
        return x.view(-1)[self.start : self.start + self.length]


class Move(NamedTuple):
    """Where a tensor goes, and how far if that were as long as the tensor."""

    tensor: Tensor
    step: Tensor
    lr: float
    parts: list[Part]


class Lamb(Optimizer):
    """You et al. 2020, arXiv:1904.00962, algorithm 2. bounds: of the factor norm(weight) / norm(step)."""

    def __init__(
        self,
        groups: Any,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        bounds: tuple[float, float] = (0.01, 10.0),
        bias_correction: bool = True,
    ) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self.bounds, self.bias_correction = bounds, bias_correction
        tensors = [tensor for group in self.param_groups for tensor in group["params"]]
        self.parts = {tensor: [Part(number, 0, tensor.numel())] for number, tensor in enumerate(tensors)}
        self.device, self.tensor, self.data = tensors[0].device, ALONE, ALONE
        self.cut = torch.zeros(len(tensors), dtype=torch.bool, device=self.device)

    def attach(self, engine: Any, mesh: Mesh) -> None:
        """Learn which weights of a DeepSpeed engine the tensors are parts of."""
        mine, weights = optimizer_layout(engine), named_weights(engine.module)
        assert mine is not None
        numbers = {name: number for number, name in enumerate(weights)}
        self.parts = {tensor: [] for tensor in mine.tensors}
        for piece in mine.pieces:
            self.parts[mine.tensors[piece.tensor]].append(Part(numbers[piece.name], piece.start, piece.length))
        self.device, self.tensor = engine.device, mesh.tensor
        self.data = mesh.data if mine.kind.startswith("zero") else ALONE
        self.cut = torch.tensor([hasattr(weight, "tensor_shard") for weight in weights.values()], device=self.device)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        moves = [
            Move(tensor, self._step(tensor, group), group["lr"], self.parts.get(tensor, []))
            for group in self.param_groups
            for tensor in group["params"]
            if tensor.grad is not None
        ]
        factors = self._factors(moves)
        for tensor, step, lr, parts in moves:
            for part in parts:
                part.of(tensor).sub_(part.of(step) * (lr * factors[part.weight]).to(tensor.device))

    def _step(self, tensor: Tensor, group: dict[str, Any]) -> Tensor:
        """Adam's, with the decay."""
        state, gradient = self.state[tensor], tensor.grad
        if not state:
            state.update(step=0, mean=torch.zeros_like(tensor), squares=torch.zeros_like(tensor))
        state["step"] += 1
        mean, squares = state["mean"], state["squares"]
        beta1, beta2 = group["betas"]
        mean.lerp_(gradient, 1 - beta1)
        squares.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        late = [1 - beta ** state["step"] if self.bias_correction else 1.0 for beta in (beta1, beta2)]
        step: Tensor = (mean / late[0]).div_((squares / late[1]).sqrt_().add_(group["eps"]))
        return step.add_(tensor, alpha=group["weight_decay"])

    def _factors(self, moves: list[Move]) -> Tensor:
        """norm(weight) / norm(step) of every weight, (weights,); 1 where either is nothing."""
        squares = torch.zeros(2, len(self.cut), device=self.device)
        for tensor, step, _, parts in moves:
            for part in parts:
                sums = torch.stack([part.of(x).float().square().sum() for x in (tensor, step)])
                squares[:, part.weight] += sums.to(self.device)
        if self.data.size > 1:
            dist.all_reduce(squares, group=self.data.group)
        if self.tensor.size > 1:
            whole = squares.clone()
            dist.all_reduce(whole, group=self.tensor.group)
            squares = whole.where(self.cut, squares)
        size, length = squares.sqrt()
        factors: Tensor = (size / length).clamp(*self.bounds)
        return factors.where((size > 0) & (length > 0), 1.0)
