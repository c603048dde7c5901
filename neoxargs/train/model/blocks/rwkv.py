"""RWKV-6 "Finch" layers (Peng et al. 2024, arXiv:2404.05892): time mixing, then channel mixing.

Names and shapes of the weights, and their initial values, are GPT-NeoX's. GPT-NeoX runs the recurrence over the samples
of a batch, by a transposed input; here it runs over the tokens of each sample. As in GPT-NeoX, the first layer of the
model normalises its input with `ln1`, where the authors' code has another norm, and the kind and epsilon of the norms
do not depend on `norm`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neoxargs.config.config import Config
from neoxargs.facts.data import masks_documents
from neoxargs.facts.rwkv import DECAY_RANK, MIXING_RANK, rwkv_widths
from neoxargs.train.model.cache import Cache
from neoxargs.train.model.documents import LayerInput, pack, unpack
from neoxargs.train.model.shared import Shared
from neoxargs.train.ops import kernels
from neoxargs.train.ops.from_inputs import from_inputs
from neoxargs.train.ops.precision import widened
from neoxargs.train.ops.wkv import wkv, wkv_rows
from neoxargs.train.parallel.carried import inputs_before, rows, starts_in_rows
from neoxargs.train.parallel.init import Initializer, uniform
from neoxargs.train.parallel.layers import Weights

#: Epsilon of the norm of each head's output: 1e-5 x 8^2, because the authors divide that output by 8.
HEAD_EPSILON = 64e-5


class RwkvTransformerBlock(nn.Module):
    """Time mixing and channel mixing, each with a residual connection: hidden_BSD -> hidden_BSD.

    With context parallelism, both run over rows: chunks of this rank's positions, which continue inputs and state of
    the chunk before.
    """

    def __init__(
        self, config: Config, weights: Weights, shared: Shared, layer: int = 0, relative: object = None
    ) -> None:
        super().__init__()
        hidden = config.shape.hidden_size
        self.is_first = layer == 0
        self.masks_documents = masks_documents(config.data)
        self.positions = weights.ranks.divided
        self.ln1, self.ln2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.att = TimeMixing(config, weights.at("att"), layer)
        self.ffn = ChannelMixing(config, weights.at("ffn"), layer)
        self.dropout = nn.Dropout(config.regularization.hidden_dropout)

    def forward(self, inputs: LayerInput) -> LayerInput:
        given_BSD, starts_BS = hidden_BSD, within_BS = unpack(inputs)
        within_BS = within_BS if self.masks_documents else None
        if self.positions is not None:
            hidden_BSD = rows(hidden_BSD, self.positions)
            within_BS = None if within_BS is None else starts_in_rows(within_BS, self.positions)
        if self.is_first:
            hidden_BSD = self.ln1(hidden_BSD)
        hidden_BSD = hidden_BSD + self.dropout(self.att(self.ln1(hidden_BSD), within_BS))
        hidden_BSD = hidden_BSD + self.dropout(self.ffn(self.ln2(hidden_BSD), within_BS))
        return pack(hidden_BSD.reshape(given_BSD.shape), starts_BS)


class TimeMixing(nn.Module):
    """Linear attention whose decays depend on the token: x_BSD -> update_BSD, with the paper's r, k, v, w, g."""

    def __init__(self, config: Config, weights: Weights, layer: int) -> None:
        super().__init__()
        hidden, self.heads = config.shape.hidden_size, config.shape.num_attention_heads
        self.positions = weights.ranks.divided
        width = rwkv_widths(config)[0]
        depth = Depth.of(config, layer)
        self.time_maa_x, self.time_maa_w, self.time_maa_k, self.time_maa_v, self.time_maa_r, self.time_maa_g = (
            weights.parameter(f"time_maa_{name}", (1, 1, hidden), depth.mixing(power, shift))
            for name, power, shift in zip("xwkvrg", (1, 1, 1, 1, 0.5, 0.5), (0, 0, 0, 0.3, 0, 0), strict=True)
        )
        self.time_maa_w1 = weights.parameter("time_maa_w1", (hidden, 5 * MIXING_RANK), uniform(1e-4))
        self.time_maa_w2 = weights.parameter("time_maa_w2", (5, MIXING_RANK, hidden), uniform(1e-4))
        self.time_decay = weights.parameter("time_decay", (1, 1, width), depth.decay)
        self.time_decay_w1 = weights.parameter("time_decay_w1", (hidden, DECAY_RANK), uniform(1e-4))
        self.time_decay_w2 = weights.parameter("time_decay_w2", (DECAY_RANK, width), uniform(1e-4))
        self.time_faaaa = weights.parameter("time_faaaa", (self.heads, width // self.heads), depth.bonus)
        self.receptance, self.key, self.value, self.gate = (
            weights.column(name, hidden, width, _linear(hidden), bias=False)
            for name in ("receptance", "key", "value", "gate")
        )
        self.output = weights.row("output", width, hidden, _linear(width), bias=False)
        self.ln_x = nn.GroupNorm(self.heads, width, eps=HEAD_EPSILON)
        #: flash-linear-attention's WKV, where it runs (engine/recurrent_kernels.py).
        self.kernel: kernels.WkvKernel | None = None
        #: Set during text generation only.
        self.cache: Cache | None = None

    def forward(self, x_BSD: Tensor, starts_BS: Tensor | None = None) -> Tensor:
        """starts_BS: where each token's document begins, if documents must not read each other."""
        last_BSD, state_BNHH = _recalled(self.cache, 2)
        last_BSD = last_BSD if self.positions is None else inputs_before(x_BSD, 1, self.positions)
        factors = self.time_maa_w, self.time_maa_k, self.time_maa_v, self.time_maa_r, self.time_maa_g
        matrices = self.time_maa_w1, self.time_maa_w2
        mixed = from_inputs(_mixed, x_BSD, shifted(x_BSD, last_BSD, starts_BS), self.time_maa_x, *matrices, *factors)
        xw_BSD, xk_BSD, xv_BSD, xr_BSD, xg_BSD = mixed.unbind()
        w = self.time_decay + torch.tanh(xw_BSD @ self.time_decay_w1) @ self.time_decay_w2
        r, k, v = self.receptance(xr_BSD), self.key(xk_BSD), self.value(xv_BSD)
        y_BSNH, state_BNHH = self._wkv(r, k, v, w, state_BNHH, starts_BS)
        if self.cache is not None:
            self.cache.keep((self.cache.last(F.pad(x_BSD, (0, 0, 1, 0)), 1), state_BNHH))
        # The norm of each head takes (T, N x H).
        normed = self.ln_x(y_BSNH.to(x_BSD.dtype).flatten(0, 1).flatten(1)).view(*x_BSD.shape[:2], -1)
        update_BSD: Tensor = self.output(normed * F.silu(self.gate(xg_BSD)))
        return update_BSD

    def _wkv(
        self, r: Tensor, k: Tensor, v: Tensor, w: Tensor, state_BNHH: Tensor | None, starts_BS: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Call `wkv` for vectors of all heads, (B, S, N x H) each; return the last state too."""
        r_BSNH, k_BSNH, v_BSNH, w_BSNH = (x.view(*x.shape[:2], self.heads, -1) for x in (r, k, v, w))
        if self.kernel is not None and self.cache is None and starts_BS is None:
            y_BSNH, state_BNHH = kernels.wkv(self.kernel, r_BSNH, k_BSNH, v_BSNH, w_BSNH, self.time_faaaa)
        else:
            if state_BNHH is None:
                width = r_BSNH.shape[-1]
                state_BNHH = widened(r.new_zeros(len(r), self.heads, width, width))
            padding_BS = None if self.cache is None else self.cache.padding(r.shape[1])
            if padding_BS is not None:  # it neither adds to the state nor decays it
                padding_BS11 = padding_BS[..., None, None]
                k_BSNH, w_BSNH = k_BSNH.masked_fill(padding_BS11, 0), w_BSNH.masked_fill(padding_BS11, -torch.inf)
            y_BSNH, state_BNHH = wkv(r_BSNH, k_BSNH, v_BSNH, w_BSNH, self.time_faaaa, state_BNHH, starts_BS)
        if self.positions is not None:
            y_BSNH = wkv_rows(y_BSNH, r_BSNH, w_BSNH, state_BNHH, starts_BS, self.positions)
        return y_BSNH, state_BNHH


def _mixed(x_BSD: Tensor, previous_BSD: Tensor, first: Tensor, w1: Tensor, w2: Tensor, *factors: Tensor) -> Tensor:
    """Interpolate between each token and the one before it, in five ways: (5, B, S, D).

    How far depends on the token: two matrices of low rank add to each of the five learned factors.
    """
    change_BSD = previous_BSD - x_BSD
    low_BSL = torch.tanh((x_BSD + change_BSD * first) @ w1)
    low_5BSL = low_BSL.view(*x_BSD.shape[:2], 5, -1).movedim(-2, 0)
    return x_BSD + change_BSD * (torch.stack(factors) + low_5BSL @ w2.unsqueeze(1))


class ChannelMixing(nn.Module):
    """Feed-forward layer that also reads the previous token: x_BSD -> update_BSD."""

    def __init__(self, config: Config, weights: Weights, layer: int) -> None:
        super().__init__()
        hidden, width = config.shape.hidden_size, rwkv_widths(config)[1]
        depth = Depth.of(config, layer)
        self.positions = weights.ranks.divided
        self.time_maa_k, self.time_maa_r = (
            weights.parameter(f"time_maa_{name}", (1, 1, hidden), depth.mixing()) for name in "kr"
        )
        self.key = weights.column("key", hidden, width, _linear(hidden), bias=False)
        self.receptance = weights.column("receptance", hidden, hidden, _linear(hidden), bias=False)
        self.value = weights.row("value", width, hidden, _linear(width), bias=False)
        #: Set during text generation only.
        self.cache: Cache | None = None

    def forward(self, x_BSD: Tensor, starts_BS: Tensor | None = None) -> Tensor:
        """starts_BS: as for `TimeMixing`."""
        (last_BSD,) = _recalled(self.cache, 1)
        last_BSD = last_BSD if self.positions is None else inputs_before(x_BSD, 1, self.positions)
        change_BSD = shifted(x_BSD, last_BSD, starts_BS) - x_BSD
        if self.cache is not None:
            self.cache.keep((self.cache.last(F.pad(x_BSD, (0, 0, 1, 0)), 1),))
        key_BSF = F.relu(self.key(x_BSD + change_BSD * self.time_maa_k)).square()
        update_BSD: Tensor = self.value(key_BSF)
        return torch.sigmoid(self.receptance(x_BSD + change_BSD * self.time_maa_r)) * update_BSD


def _recalled(cache: Cache | None, count: int) -> tuple[Tensor | None, ...]:
    """Return the tensors that a module stored in the pass before, or None `count` times."""
    past = None if cache is None else cache.state()
    return past or (None,) * count


def shifted(x_BSD: Tensor, last_BSD: Tensor | None, starts_BS: Tensor | None) -> Tensor:
    """Return for each token the one before it in its document, or zeros.

    last_BSD: one token, what is before the first token of this pass; None for zeros.
    """
    previous_BSD = F.pad(x_BSD, (0, 0, 1, -1)) if last_BSD is None else torch.cat((last_BSD, x_BSD[:, :-1]), dim=1)
    if starts_BS is None:
        return previous_BSD
    begins_BS = starts_BS == torch.arange(x_BSD.shape[1], device=x_BSD.device)
    return previous_BSD.masked_fill(begins_BS.unsqueeze(-1), 0)


class Depth(NamedTuple):
    """The initial values that depend on a layer's place in the model, from 0 to 1.

    They are computed in place: deepspeed.zero.Init gives new tensors the type of the model.
    """

    place: float
    """layer / (layers - 1)."""
    remaining: float
    """1 - layer / layers."""

    @staticmethod
    def of(config: Config, layer: int) -> Depth:
        layers = config.shape.num_layers
        return Depth(layer / max(layers - 1, 1), 1 - layer / layers)

    def mixing(self, power: float = 1, shift: float = 0) -> Initializer:
        """Return how far channels are mixed with the previous token: the first channels and layers the most."""

        def fill(tensor: Tensor, _: torch.Generator) -> Tensor:
            kept = _ramp(tensor).div_(tensor.numel()).pow_(self.remaining * power).add_(shift * self.place)
            return kept.neg_().add_(1)

        return fill

    def decay(self, tensor: Tensor, _: torch.Generator) -> Tensor:
        """Fill with w from -6 (slow) in the first channel to -1 (fast) in the last, over all heads."""
        return _ramp(tensor).div_(tensor.numel() - 1).pow_(0.7 + 1.3 * self.place).mul_(5).sub_(6)

    def bonus(self, tensor: Tensor, _: torch.Generator) -> Tensor:
        """Fill with the weight of the current token: falling over the channels, plus -0.1, 0 and 0.1 in turn."""
        flat = tensor.view(-1)
        zigzag = _ramp(flat.clone()).add_(1).remainder_(3).sub_(1).mul_(0.1)
        _ramp(flat).div_(1 - len(flat)).add_(1).mul_(self.place).add_(zigzag)
        return tensor


def _ramp(tensor: Tensor) -> Tensor:
    """Fill the last dimension with 0, 1, 2, …"""
    return tensor.fill_(1).cumsum_(-1).sub_(1)


def _linear(inputs: int) -> Initializer:
    """The initial values of torch's nn.Linear."""
    return uniform(inputs**-0.5)
