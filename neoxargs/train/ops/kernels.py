"""Kernels of other packages for recurrent layers, called with the tensors of our own operators.

mamba-ssm has the selective scan, causal-conv1d the convolution before it, and flash-linear-attention WKV. Each computes
sequences that begin with no state. Gradients of the last state are WKV's only. A kernel is the package's function.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from neoxargs.train.ops.wkv import LARGEST_W

Kernel = Callable[..., Tensor]
#: WKV returns the last state too.
WkvKernel = Callable[..., tuple[Tensor, Tensor]]


def scan(
    kernel: Kernel,
    x_BSI: Tensor,
    steps_BSI: Tensor,
    bias_I: Tensor,
    into_BSM: Tensor,
    out_BSM: Tensor,
    A_IM: Tensor,
    D_I: Tensor,
) -> Tensor:
    """Return y_BSI as `selective_scan` does. kernel: mamba-ssm's `selective_scan_fn`.

    steps_BSI: the step sizes before bias and softplus, in the type of x; the kernel adds the bias in fp32.
    """
    # All that depends on the token has one type, and the rest is in fp32.
    x_BIS, steps_BIS, into_BMS, out_BMS = (each.to(x_BSI.dtype).mT for each in (x_BSI, steps_BSI, into_BSM, out_BSM))
    fixed = {"delta_bias": bias_I.float(), "delta_softplus": True}
    return kernel(x_BIS, steps_BIS, A_IM.float(), into_BMS, out_BMS, D_I.float(), **fixed).mT


def convolve(
    kernel: Kernel, x_BSI: Tensor, taps_IT: Tensor, bias_I: Tensor | None, before_BSI: Tensor | None = None
) -> Tensor:
    """Return the causal convolution of each channel, (B, S, I). kernel: causal-conv1d's `causal_conv1d_fn`.

    before_BSI: inputs of tokens before; None for zeros.
    """
    if before_BSI is None:
        return kernel(x_BSI.mT, taps_IT, bias_I).mT
    return kernel(torch.cat((before_BSI, x_BSI), 1).mT, taps_IT, bias_I).mT[:, before_BSI.shape[1] :]


def wkv(
    kernel: WkvKernel, r_BSNH: Tensor, k_BSNH: Tensor, v_BSNH: Tensor, w_BSNH: Tensor, u_NH: Tensor
) -> tuple[Tensor, Tensor]:
    """Return y_BSNH as `wkv` does, in the type of v, and the state after the last token in fp32.

    kernel: flash-linear-attention's `chunk_rwkv6`.
    """
    log_decay_BSNH = -w_BSNH.float().clamp(max=LARGEST_W).exp()
    return kernel(r_BSNH, k_BSNH, v_BSNH, log_decay_BSNH, u_NH, scale=1.0, output_final_state=True)
