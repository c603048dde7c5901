"""Normalisation of the residual stream, by name."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from neoxargs.registry.model import Norm


def norm(width: int, options: Norm) -> nn.Module:
    """The layer that `norm` names, over the last dimension (…, width)."""
    return NORMS[options.norm](width, options)


NORMS: dict[str, Callable[[int, Norm], nn.Module]] = {
    "layernorm": lambda width, options: nn.LayerNorm(width, options.layernorm_epsilon, bias=options.use_bias_in_norms),
    "non_parametric_layernorm": lambda width, options: nn.LayerNorm(
        width, options.layernorm_epsilon, elementwise_affine=False
    ),
}
