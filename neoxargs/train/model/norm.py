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


NORMS: dict[str, Callable[[int, Norm], nn.Module]] = {
    "layernorm": lambda width, options: nn.LayerNorm(width, options.layernorm_epsilon, bias=options.use_bias_in_norms),
    "rmsnorm": lambda width, options: nn.RMSNorm(width, options.rms_norm_epsilon),
    "scalenorm": lambda width, options: ScaleNorm(options.scalenorm_epsilon),
    "non_parametric_layernorm": lambda width, options: nn.LayerNorm(
        width, options.layernorm_epsilon, elementwise_affine=False
    ),
}
