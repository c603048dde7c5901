"""Normalisation layers: layernorm, rmsnorm, scalenorm, non_parametric_layernorm."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from neoxargs.registry.model import Norm
from neoxargs.train.parallel.communicate import sum_gradients
from neoxargs.train.process.mesh import ALONE, Axis


def norm(width: int, options: Norm, shared: Axis = ALONE) -> nn.Module:
    """Make the layer that `norm` names, over the last dimension (…, width).

    shared: ranks that hold the same weights and apply them to different inputs; their gradients are summed.
    """
    layer = NORMS[options.norm](width, options)
    sum_gradients(layer.parameters(), shared)
    return layer


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
        precise = x.float()
        root = precise.square().mean(-1, keepdim=True).sqrt()
        return (precise / (root + self.epsilon)).to(x.dtype) * self.weight


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
