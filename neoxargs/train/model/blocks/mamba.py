"""Mamba layers (Gu and Dao 2023, arXiv:2312.00752): a gated, recurrent mixer in place of attention and feed-forward.

Names and shapes of the weights are those of GPT-NeoX and of mamba-ssm. Tensor parallel ranks divide the inner channels.
Each token's step sizes, input vector and output vector are computed from the channels of all ranks, as in a model on
one rank; in GPT-NeoX, each rank uses its own channels only, so that the function depends on the number of ranks.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neoxargs.config.config import Config
from neoxargs.facts.data import masks_documents
from neoxargs.facts.mamba import STATE, TAPS, has_scan_bias, packed_width, step_rank
from neoxargs.facts.model import norms_after, norms_before
from neoxargs.train.model.bias import RelativeBias
from neoxargs.train.model.cache import Cache
from neoxargs.train.model.documents import LayerInput, pack, unpack
from neoxargs.train.model.norm import norm, normed
from neoxargs.train.model.shared import Shared
from neoxargs.train.ops import kernels
from neoxargs.train.ops.convolution import convolve
from neoxargs.train.ops.fused import DropoutAdd
from neoxargs.train.ops.precision import widened
from neoxargs.train.ops.scan import Inputs, scan_rows, selective_scan
from neoxargs.train.parallel.carried import inputs_before, rows, starts_in_rows
from neoxargs.train.parallel.communicate import copy_to_ranks
from neoxargs.train.parallel.init import initializer, ones, uniform
from neoxargs.train.parallel.layers import Weights

#: Range of the initial step sizes, which are distributed evenly on a logarithmic scale.
STEPS = (1e-3, 1e-1)


class MambaTransformerBlock(nn.Module):
    """The mixer with a residual connection: hidden_BSD -> hidden_BSD."""

    def __init__(
        self, config: Config, weights: Weights, shared: Shared, layer: int = 0, relative: RelativeBias | None = None
    ) -> None:
        super().__init__()
        width, sequence = config.shape.hidden_size, weights.ranks.sequence
        self.recompute, rate = shared.recompute, config.regularization.hidden_dropout
        self.norm = norm(width, config.norm, sequence) if norms_before(config.norm) else None
        self.mixer = Mixer(config, weights.at("mixer"), shared)
        self.output_norm = norm(width, config.norm, sequence) if norms_after(config.norm) else None
        self.post_norm_residual = config.norm.apply_residual_connection_post_layernorm
        self.add = DropoutAdd(rate, config.fusion.bias_dropout_fusion, sequence)

    def forward(self, inputs: LayerInput) -> LayerInput:
        hidden_BSD, starts_BS = unpack(inputs)
        with self.recompute.layer():
            normed_BSD = normed(self.norm, hidden_BSD, self.recompute)
            update_BSD = normed(self.output_norm, self.mixer(normed_BSD, starts_BS), self.recompute)
            hidden_BSD = self.add(update_BSD, normed_BSD if self.post_norm_residual else hidden_BSD)
        return pack(hidden_BSD, starts_BS)


class Mixer(nn.Module):
    """Projection, convolution, selective scan, gate and projection: hidden_BSD -> update_BSD.

    With sequence parallelism S is a shard in both. I are this rank's channels. With context parallelism, convolution
    and scan run over rows: chunks of this rank's positions, which continue inputs and state of the chunk before.
    """

    def __init__(self, config: Config, weights: Weights, shared: Shared) -> None:
        super().__init__()
        self.tensor, self.recompute = weights.ranks.tensor, shared.recompute
        self.positions = weights.ranks.divided
        self.resets = masks_documents(config.data)
        hidden, inner, init = config.shape.hidden_size, config.mamba.mamba_inner_size, config.init
        bias = config.mamba.mamba_use_bias_in_linears
        init_in = initializer(init.init_method, init, config.shape)
        init_out = initializer(init.output_layer_init_method, init, config.shape)
        self.widths = (step_rank(config), STATE, STATE)
        # Two parts: each rank gets the inputs of its channels and their gates.
        self.in_proj = weights.column("in_proj", hidden, 2 * inner, init_in, bias, parts=2)
        self.conv1d = Convolution(config, weights.at("conv1d"))
        # The whole sequence leaves it, which the scan needs.
        whole = replace(weights, ranks=replace(weights.ranks, sequence_parallel=False))
        self.x_proj = whole.row("x_proj", inner, packed_width(config), init_in, has_scan_bias(config))
        self.dt_proj = StepSizes(config, weights.at("dt_proj"))
        self.A_log = weights.parameter("A_log", (inner, STATE), _one_to_n, split=0)
        self.A_log.no_weight_decay = True  # type: ignore[attr-defined]
        self.D = weights.parameter("D", (inner,), ones, split=0)
        self.out_proj = weights.row("out_proj", inner, hidden, init_out, bias)
        #: mamba-ssm's scan, where it runs (engine/recurrent_kernels.py).
        self.kernel: kernels.Kernel | None = None
        #: Set during text generation only.
        self.cache: Cache | None = None

    def forward(self, hidden_BSD: Tensor, starts_BS: Tensor | None = None) -> Tensor:
        """starts_BS: the position where each token's document begins; None if no layer needs it."""
        x_BSI, gate_BSI = self.in_proj(hidden_BSD).chunk(2, dim=-1)
        starts_BS = starts_BS if self.resets else None
        window_BSI, state_BIM = (None, None) if self.cache is None else self.cache.state() or (None, None)
        if self.positions is not None:
            x_BSI = rows(x_BSI, self.positions)
            starts_BS = None if starts_BS is None else starts_in_rows(starts_BS, self.positions)
            window_BSI = inputs_before(x_BSI, TAPS - 1, self.positions)
        x_BSI, window_BSI = self.conv1d(x_BSI, starts_BS, window_BSI, self.cache is not None)
        y_BSI, state_BIM = self._scan(self.recompute(F.silu, x_BSI), starts_BS, state_BIM)
        if self.cache is not None and state_BIM is not None:
            self.cache.keep((self.cache.last(window_BSI, TAPS - 1), state_BIM))
        update_BSD: Tensor = self.out_proj(y_BSI.reshape(gate_BSI.shape) * self.recompute(F.silu, gate_BSI))
        return update_BSD

    def _scan(self, x_BSI: Tensor, starts_BS: Tensor | None, state_BIM: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return y_BSI, and the state after the last token if a cache keeps it."""
        # Every rank uses all of it for its own channels, so the gradients are summed.
        packed = copy_to_ranks(self.x_proj(x_BSI), self.tensor)
        narrow_BSL, into_BSM, out_BSM = packed.split(self.widths, dim=-1)
        A_IM, D_I = -torch.exp(widened(self.A_log)), widened(self.D)
        if self.kernel is not None and self.cache is None and starts_BS is None:
            steps_BSI = F.linear(narrow_BSL, self.dt_proj.weight)
            bias_I = self.dt_proj.bias
            return kernels.scan(self.kernel, x_BSI, steps_BSI, bias_I, into_BSM, out_BSM, A_IM, D_I), None
        steps_BSI = self.dt_proj(narrow_BSL)
        padding_BS = None if self.cache is None else self.cache.padding(steps_BSI.shape[1])
        if padding_BS is not None:  # a step of size 0 leaves the state as it is
            steps_BSI = steps_BSI.masked_fill(padding_BS.unsqueeze(-1), -torch.inf)
        resets_BS = None if starts_BS is None else starts_BS == torch.arange(x_BSI.shape[1], device=x_BSI.device)
        inputs = Inputs(x_BSI, steps_BSI, into_BSM, out_BSM, A_IM, D_I, resets_BS)
        if self.positions is not None:
            return scan_rows(inputs, self.positions), None
        return selective_scan(inputs, state_BIM)


class Convolution(nn.Module):
    """Causal convolution over time, each channel by itself."""

    def __init__(self, config: Config, weights: Weights) -> None:
        super().__init__()
        inner, method = config.mamba.mamba_inner_size, uniform(TAPS**-0.5)  # torch's default for nn.Conv1d
        self.weight = weights.parameter("weight", (inner, 1, TAPS), method, split=0)
        biased = config.mamba.mamba_use_bias_in_conv
        self.bias = weights.parameter("bias", (inner,), method, split=0) if biased else None
        #: causal-conv1d's kernel, where it runs (engine/recurrent_kernels.py).
        self.kernel: kernels.Kernel | None = None

    def forward(
        self,
        x_BSI: Tensor,
        starts_BS: Tensor | None = None,
        before_BSI: Tensor | None = None,
        continues: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Return the output (B, S, I), and the inputs, if a pass of later tokens `continues`, with those before.

        before_BSI: inputs of the TAPS - 1 tokens before; None for zeros. Documents see only their own tokens.
        """
        if self.kernel is not None and starts_BS is None and not continues:
            return kernels.convolve(self.kernel, x_BSI, self.weight[:, 0], self.bias, before_BSI), x_BSI
        return convolve(x_BSI, self.weight[:, 0], self.bias, starts_BS, before_BSI)


class StepSizes(nn.Module):
    """Linear layer from the bottleneck to the step size of each channel, before softplus, in fp32."""

    def __init__(self, config: Config, weights: Weights) -> None:
        super().__init__()
        rank, inner = step_rank(config), config.mamba.mamba_inner_size
        self.weight = weights.parameter("weight", (inner, rank), uniform(rank**-0.5), split=0)
        self.bias = weights.parameter("bias", (inner,), _step_sizes, split=0)

    def forward(self, narrow_BSL: Tensor) -> Tensor:
        return widened(F.linear(narrow_BSL, self.weight)) + widened(self.bias)


def _one_to_n(tensor: Tensor, _: torch.Generator) -> Tensor:
    """Set every row to the logarithms of 1 to N."""
    return tensor.copy_(torch.arange(1, tensor.shape[1] + 1, dtype=tensor.dtype, device=tensor.device).log())


def _step_sizes(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Draw step sizes and apply the inverse of softplus."""
    low, high = map(math.log, STEPS)
    steps = tensor.uniform_(low, high, generator=generator).exp_()
    return steps.copy_(steps + torch.log(-torch.expm1(-steps)))
