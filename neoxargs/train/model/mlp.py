"""The feed-forward part of a transformer layer."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neoxargs.config.config import Config
from neoxargs.facts.model import GATED, mlp_width
from neoxargs.train.model.shared import Shared
from neoxargs.train.ops.selective import Selective
from neoxargs.train.parallel.init import initializer
from neoxargs.train.parallel.layers import Weights

_tanh_gelu = partial(F.gelu, approximate="tanh")


def _erf_gelu(x: Tensor) -> Tensor:
    """Exact GELU written with erf, for ONNX runtimes without a GELU operator (`onnx_safe`)."""
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


#: Activations other than `gelu`.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "softsign": F.softsign,
    "swish": F.silu,
    "silu": F.silu,
    "mish": F.mish,
}
#: Gated activations other than `geglu` -> the function applied to the gate (Shazeer 2020, arXiv:2002.05202).
GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "glu": torch.sigmoid,
    "bilinear": lambda gate: gate,
    "reglu": F.relu,
    "geglu_tanh": _tanh_gelu,
    "swiglu": F.silu,
}


def feed_forward_activation(config: Config, recompute: Selective) -> Callable[[Tensor], Tensor]:
    """Return the activation between the two matrices; a gated one halves the last dimension.

    GPT-NeoX's fused bias-GELU kernel computes the tanh approximation, and so does every GELU of Transformer Engine.
    """
    name, fusion, te = config.mlp.activation, config.fusion, config.transformer_engine.te_layernorm_mlp
    gelu = _erf_gelu if fusion.onnx_safe else F.gelu
    if name in GATED:
        gate = (GATES | {"geglu": _tanh_gelu if te else gelu})[name]

        def gated(x: Tensor) -> Tensor:
            value, gate_input = x.chunk(2, dim=-1)  # in GPT-NeoX's order
            return value * recompute(gate, gate_input)

        return gated
    if name == "gelu":
        return _tanh_gelu if fusion.bias_gelu_fusion or te else gelu
    return ACTIVATIONS[name]


class FeedForward(nn.Module):
    """Position-wise feed-forward network: normed_BSD -> update_BSD; F is this rank's share of the width.

    partial: return this rank's summand, as of `Weights.row`. width, bias: of the layer between the matrices, and
    whether they have biases; by default as the configuration says.
    """

    def __init__(
        self,
        config: Config,
        weights: Weights,
        shared: Shared,
        partial: bool = False,
        width: int | None = None,
        bias: bool | None = None,
    ) -> None:
        super().__init__()
        shape, mlp, init = config.shape, config.mlp, config.init
        self.activation = feed_forward_activation(config, shared.recompute)
        self.recompute = shared.recompute
        narrow, wide = shape.hidden_size, width or mlp_width(shape, mlp)
        biased = mlp.use_bias_in_mlp if bias is None else bias
        init_in = initializer(init.init_method, init, shape)
        init_out = initializer(init.output_layer_init_method, init, shape)
        # A gated activation needs twice the width: one half each for value and gate.
        halves = 2 if mlp.activation in GATED else 1
        # `halves` parts: each rank gets the same share of both halves, so that it can multiply them without
        # communication.
        self.dense_h_to_4h = weights.column("dense_h_to_4h", narrow, halves * wide, init_in, biased, halves)
        self.dense_4h_to_h = weights.row("dense_4h_to_h", wide, narrow, init_out, biased, partial)

    def forward(self, normed_BSD: Tensor) -> Tensor:
        wide_BSF = self.dense_h_to_4h(normed_BSD)  # twice as wide if gated
        # The same name, so that the first tensor is freed where no backward pass needs it.
        wide_BSF = self.recompute(self.activation, wide_BSF)
        return self.dense_4h_to_h(wide_BSF)  # type: ignore[no-any-return]
