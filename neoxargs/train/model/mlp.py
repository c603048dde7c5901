"""The feed-forward half of a layer."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from neoxargs.registry.model import Fusion, Init, Mlp, Shape
from neoxargs.train.model.init import draw
from neoxargs.train.model.layers import Make


def _tanh_gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "relu": F.relu,
    "softsign": F.softsign,
    "swish": F.silu,
    "silu": F.silu,
    "mish": F.mish,
}


class FeedForward(nn.Module):
    """(batch, seq, hidden) -> (batch, seq, hidden), each position by itself."""

    def __init__(self, shape: Shape, mlp: Mlp, fusion: Fusion, init: Init, make: Make) -> None:
        super().__init__()
        # NeoX's fused kernel computes the approximation, and so do the models trained with it.
        approximate = mlp.activation == "gelu" and fusion.bias_gelu_fusion
        self.activation = _tanh_gelu if approximate else ACTIVATIONS[mlp.activation]
        narrow, wide = shape.hidden_size, shape.intermediate_size
        enter, leave = draw(init.init_method, init, shape), draw(init.output_layer_init_method, init, shape)
        self.dense_h_to_4h = make.column("dense_h_to_4h", narrow, wide, enter, mlp.use_bias_in_mlp)
        self.dense_4h_to_h = make.row("dense_4h_to_h", wide, narrow, leave, mlp.use_bias_in_mlp)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense_4h_to_h(self.activation(self.dense_h_to_4h(x)))  # type: ignore[no-any-return]
