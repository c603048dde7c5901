"""The feed-forward half of a layer."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neoxargs.registry.model import Fusion, Init, Mlp, Shape
from neoxargs.sizes.model import mlp_width
from neoxargs.train.model.init import draw
from neoxargs.train.parallel.make import Make


def _tanh_gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _erf_gelu(x: Tensor) -> Tensor:
    """GELU spelt out, for programs that know no such operation."""
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "relu": F.relu,
    "softsign": F.softsign,
    "swish": F.silu,
    "silu": F.silu,
    "mish": F.mish,
}
#: What the gate goes through before it multiplies the other half (Shazeer 2020, arXiv:2002.05202).
GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "glu": torch.sigmoid,
    "bilinear": lambda gate: gate,
    "reglu": F.relu,
    "geglu": F.gelu,
    "swiglu": F.silu,
}


def activation(name: str, approximate: bool, spelt_out: bool = False) -> Callable[[Tensor], Tensor]:
    """What lies between the two matrices; a gated one halves the last dimension."""
    gelu = _erf_gelu if spelt_out else F.gelu
    if name in GATES:
        gate = gelu if name == "geglu" else GATES[name]
        return lambda x: _gated(x, gate)
    if name == "gelu":
        return _tanh_gelu if approximate else gelu
    return ACTIVATIONS[name]


def _gated(x: Tensor, gate: Callable[[Tensor], Tensor]) -> Tensor:
    """GPT-NeoX's order: what is gated comes first, its gate second."""
    value, opening = x.chunk(2, dim=-1)
    return value * gate(opening)


class FeedForward(nn.Module):
    """(batch, seq, hidden) -> (batch, seq, hidden), each position by itself."""

    def __init__(self, shape: Shape, mlp: Mlp, fusion: Fusion, init: Init, make: Make) -> None:
        super().__init__()
        # NeoX's fused kernel computes the approximation, and so do the models trained with it.
        self.activation = activation(mlp.activation, fusion.bias_gelu_fusion, fusion.onnx_safe)
        narrow, wide = shape.hidden_size, mlp_width(shape, mlp)
        enter, leave = draw(init.init_method, init, shape), draw(init.output_layer_init_method, init, shape)
        halves = 2 if mlp.activation in GATES else 1
        self.dense_h_to_4h = make.column("dense_h_to_4h", narrow, halves * wide, enter, mlp.use_bias_in_mlp, halves)
        self.dense_4h_to_h = make.row("dense_4h_to_h", wide, narrow, leave, mlp.use_bias_in_mlp)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense_4h_to_h(self.activation(self.dense_h_to_4h(x)))  # type: ignore[no-any-return]
