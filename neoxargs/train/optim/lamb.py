"""LAMB for weights that are distributed over ranks.

LAMB scales the update of each weight to the norm of that weight. Under tensor parallelism and ZeRO, an optimizer's
tensor is a slice of a weight or a concatenation of parts of several weights. The squared norms of the parts are summed
over the ranks to those of the full weights, once per step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from neoxargs.train.deepspeed import interface
from neoxargs.train.deepspeed.optimizer_layout import optimizer_layout
from neoxargs.train.deepspeed.weight_names import named_weights
from neoxargs.train.process.mesh import ALONE, Axis, Mesh


class WeightPart(NamedTuple):
    """Contiguous elements of one weight in a tensor of the optimizer."""

    weight: int
    """Index of the weight in the model."""
    start: int
    """Offset in the optimizer's tensor, in flat elements."""
    length: int

    def of(self, x: Tensor) -> Tensor:
        """View of the part's elements in a tensor of the optimizer's tensor's shape."""
        return x.view(-1)[self.start : self.start + self.length]


class Update(NamedTuple):
    """An optimizer's tensor and its Adam update, before the trust ratio is applied."""

    tensor: Tensor
    step: Tensor
    lr: float
    parts: list[WeightPart]


def adam_update(
    state: dict[str, Any], gradient: Tensor, group: dict[str, Any], moments: tuple[str, str], corrects: bool = True
) -> Tensor:
    """Return Adam's update; update the moments, which `state` has by these names. corrects: their bias."""
    if not state:
        state.update({"step": 0} | {name: torch.zeros_like(gradient) for name in moments})
    state["step"] += 1
    mean, squares = (state[name] for name in moments)
    beta1, beta2 = group["betas"]
    mean.lerp_(gradient, 1 - beta1)
    squares.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    correction = [1 - beta ** state["step"] if corrects else 1.0 for beta in (beta1, beta2)]
    update: Tensor = (mean / correction[0]).div_((squares / correction[1]).sqrt_().add_(group["eps"]))
    return update


class Lamb(Optimizer):
    """LAMB: You et al. 2020, arXiv:1904.00962, algorithm 2.

    bounds: smallest and largest trust ratio norm(weight) / norm(update).
    """

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
        self.parts = {tensor: [WeightPart(number, 0, tensor.numel())] for number, tensor in enumerate(tensors)}
        self.device, self.data = tensors[0].device, ALONE
        #: Ranks that hold slices of some weights, and whether they do so of each weight.
        self.sliced: list[tuple[Axis, Tensor]] = []
        self.count = len(tensors)

    def attach(self, engine: interface.Engine, mesh: Mesh) -> None:
        """Map the optimizer's tensors to the weights of a DeepSpeed engine. Call before the first step."""
        layout, weights = optimizer_layout(engine), named_weights(engine.module)
        assert layout is not None
        numbers = {name: number for number, name in enumerate(weights)}
        self.parts = {tensor: [] for tensor in layout.tensors}
        for piece in layout.pieces:
            self.parts[layout.tensors[piece.tensor]].append(WeightPart(numbers[piece.name], piece.start, piece.length))
        self.device, self.count, partitioned = engine.device, len(weights), layout.kind.startswith("zero")
        self.data = mesh.data if partitioned else ALONE
        # Partitions are summed over all data parallel ranks, among which are the expert parallel ranks.
        axes = (mesh.tensor, "tensor_shard"), (ALONE if partitioned else mesh.expert, "expert_shard")
        self.sliced = [
            (axis, torch.tensor([hasattr(weight, shard) for weight in weights.values()], device=self.device))
            for axis, shard in axes
            if axis.size > 1
        ]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the weights. Collective under tensor parallelism and ZeRO; `closure` is ignored."""
        updates = [
            Update(tensor, self._update(tensor, group), group["lr"], self.parts.get(tensor, []))
            for group in self.param_groups
            for tensor in group["params"]
            if tensor.grad is not None
        ]
        ratios = self._trust_ratios(updates)
        for tensor, step, lr, parts in updates:
            for part in parts:
                part.of(tensor).sub_(part.of(step) * (lr * ratios[part.weight]).to(tensor.device))

    def _update(self, tensor: Tensor, group: dict[str, Any]) -> Tensor:
        """Return Adam's update plus weight decay, in the tensor's shape; update the moments."""
        assert tensor.grad is not None
        step = adam_update(self.state[tensor], tensor.grad, group, ("mean", "squares"), self.bias_correction)
        return step.add_(tensor, alpha=group["weight_decay"])

    def _trust_ratios(self, updates: list[Update]) -> Tensor:
        """Return norm(weight) / norm(update) of each weight within the bounds, (weights,); 1 if a norm is 0."""
        # Row 0: weights; row 1: updates.
        squares = torch.zeros(2, self.count, device=self.device)
        for tensor, step, _, parts in updates:
            for part in parts:
                # In fp32, also for 16-bit weights.
                sums = torch.stack([part.of(x).float().square().sum() for x in (tensor, step)])
                squares[:, part.weight] += sums.to(self.device)
        if self.data.size > 1:
            dist.all_reduce(squares, group=self.data.group)
        for axis, is_sliced in self.sliced:
            over_slices = squares.clone()
            dist.all_reduce(over_slices, group=axis.group)
            # Every rank of the axis has the other weights in full, so their norms are not summed.
            squares = over_slices.where(is_sliced, squares)
        weight_norms, update_norms = squares.sqrt()
        # 0 / 0 gives NaN here, which the next line replaces.
        ratios: Tensor = (weight_norms / update_norms).clamp(*self.bounds)
        return ratios.where((weight_norms > 0) & (update_norms > 0), 1.0)
