"""Normalisation layers: layernorm, rmsnorm, scalenorm, non_parametric_layernorm."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neoxargs.registry.model import Norm
from neoxargs.train.autograd import apply
from neoxargs.train.ops.from_inputs import from_inputs
from neoxargs.train.ops.selective import Selective
from neoxargs.train.parallel.communicate import register_gradient_sum
from neoxargs.train.parallel.init import ones
from neoxargs.train.parallel.layers import Weights
from neoxargs.train.process.collectives import start_sum
from neoxargs.train.process.mesh import ALONE, Axis


def norm(width: int, options: Norm, shared: Axis = ALONE) -> nn.Module:
    """Make the layer that `norm` names, over the last dimension (…, width).

    shared: ranks that hold the same weights and apply them to different inputs; their gradients are summed.
    """
    layer = OnePlusWeight(width, options) if options.apply_layernorm_1p else NORMS[options.norm](width, options)
    register_gradient_sum(layer.parameters(), shared)
    return layer


def normed(layer: nn.Module | None, x: Tensor, recompute: Selective) -> Tensor:
    """Return x normalised by the layer, or x if there is none.

    Selective recomputation does not store the result, which it can compute again from the norm's stored input.
    """
    return x if layer is None else recompute(layer, x)


class ScaleNorm(nn.Module):
    """ScaleNorm: scales each vector to one learned length (Nguyen & Salazar 2019, arXiv:1910.05895)."""

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * nn.functional.normalize(x, dim=-1, eps=self.epsilon)


class EpsilonOutsideRoot(nn.Module):
    """RMSNorm that adds epsilon to the root of the mean square, as GPT-NeoX's did until May 2025."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return from_inputs(self._normalize, x, self.weight)

    def _normalize(self, x: Tensor, weight: Tensor) -> Tensor:
        # In fp32: the mean of squares of a 16-bit vector loses digits, and overflows in fp16.
        precise = x.float()
        root = precise.square().mean(-1, keepdim=True).sqrt()
        return (precise / (root + self.epsilon)).to(x.dtype) * weight


class AllHeadsNorm(nn.Module):
    """RMSNorm over the queries, or the keys, of all heads together (OLMo 2, arXiv:2501.00656, section 3.3).

    A rank has the weights of its own heads; the sum of squares is that of all ranks. heads: groups of heads on this
    rank, heads of a group, head dimension, the last dimensions of the input.
    """

    def __init__(self, heads: tuple[int, int, int], options: Norm, weights: Weights) -> None:
        super().__init__()
        self.heads, self.epsilon, self.tensor = heads, options.rms_norm_epsilon, weights.ranks.tensor
        self.width = math.prod(heads) * self.tensor.size
        self.weight = weights.parameter("weight", (self.width,), ones, split=0)

    def forward(self, x: Tensor) -> Tensor:
        """x: x_BSKGH, and so is the result."""
        weight = self.weight.view(self.heads)
        return apply(_OverRanks, x, weight, self.width, self.epsilon, self.tensor)


class _OverRanks(torch.autograd.Function):
    """RMSNorm over the last three dimensions of x on all ranks, computed in fp32.

    Stores x in its own type and one number per token, where autograd would store the vectors in fp32 twice.
    """

    @staticmethod
    def forward(ctx: Any, x_BSKGH: Tensor, weight_KGH: Tensor, width: int, epsilon: float, axis: Axis) -> Tensor:
        precise_BSKGH = x_BSKGH.float()
        squares = _sum_over_heads(precise_BSKGH.square(), axis)
        root = torch.rsqrt(squares / width + epsilon)
        ctx.save_for_backward(x_BSKGH, weight_KGH, root)
        ctx.width, ctx.axis = width, axis
        return (precise_BSKGH * root * weight_KGH).to(x_BSKGH.dtype)

    @staticmethod
    def backward(ctx: Any, gradient_BSKGH: Tensor) -> tuple[Tensor | None, ...]:
        x_BSKGH, weight_KGH, root = ctx.saved_tensors
        precise_BSKGH, gradient_BSKGH = x_BSKGH.float(), gradient_BSKGH.float()
        gradient_KGH = (gradient_BSKGH * precise_BSKGH * root).sum((0, 1)).to(weight_KGH.dtype)
        scaled_BSKGH = gradient_BSKGH * weight_KGH
        # Every rank's heads are divided by the root, and so every rank has a part of its gradient.
        # d root / d squares = -root^3 / (2 width); times the gradient of the root, summed over the heads of all ranks.
        of_squares = -_sum_over_heads(scaled_BSKGH * precise_BSKGH, ctx.axis) * root**3 / (2 * ctx.width)
        return (scaled_BSKGH * root + 2 * of_squares * precise_BSKGH).to(x_BSKGH.dtype), gradient_KGH, None, None, None


def _sum_over_heads(x_BSKGH: Tensor, axis: Axis) -> Tensor:
    """Return the sums over the heads of all ranks, (B, S, 1, 1, 1)."""
    # One number per token, so that the all-reduce is small.
    total = x_BSKGH.sum((-3, -2, -1), keepdim=True).contiguous()
    return total if axis.size == 1 else start_sum(total, axis.group)()


class OnePlusWeight(nn.Module):
    """LayerNorm or RMSNorm whose scale is 1 + weight, computed in fp32 (`apply_layernorm_1p`)."""

    def __init__(self, width: int, options: Norm) -> None:
        super().__init__()
        self.is_rms = options.norm == "rmsnorm"
        self.epsilon = options.rms_norm_epsilon if self.is_rms else options.layernorm_epsilon
        self.weight = nn.Parameter(torch.zeros(width))
        self.bias = nn.Parameter(torch.zeros(width)) if options.use_bias_in_norms and not self.is_rms else None

    def forward(self, x: Tensor) -> Tensor:
        return from_inputs(self._normalize, x, self.weight, *([] if self.bias is None else [self.bias]))

    def _normalize(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        scale, precise = 1 + weight.float(), x.float()
        if self.is_rms:
            return F.rms_norm(precise, scale.shape, scale, self.epsilon).to(x.dtype)
        shift = None if bias is None else bias.float()
        return F.layer_norm(precise, scale.shape, scale, shift, self.epsilon).to(x.dtype)


def _rms_norm(width: int, options: Norm) -> nn.Module:
    under_root = options.__dict__.get("rms_norm_epsilon_under_root", True)
    layer = nn.RMSNorm if under_root else EpsilonOutsideRoot
    return layer(width, options.rms_norm_epsilon)


NORMS: dict[str, Callable[[int, Norm], nn.Module]] = {
    "layernorm": lambda width, options: nn.LayerNorm(width, options.layernorm_epsilon, bias=options.use_bias_in_norms),
    "rmsnorm": _rms_norm,
    "scalenorm": lambda width, options: ScaleNorm(options.scalenorm_epsilon),
    "non_parametric_layernorm": lambda width, options: nn.LayerNorm(
        width, options.layernorm_epsilon, elementwise_affine=False
    ),
}
