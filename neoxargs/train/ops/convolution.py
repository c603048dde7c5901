"""Causal convolution over time, each channel by itself."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def convolve(
    x_BSI: Tensor,
    taps_IT: Tensor,
    bias_I: Tensor | None,
    starts_BS: Tensor | None = None,
    before_BSI: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the output (B, S, I), and the inputs with those of the tokens before.

    taps_IT: the newest token's last. starts_BS: where each token's document begins, if it reads only that. before_BSI:
    inputs of the T - 1 tokens before; None for zeros.
    """
    taps, length = taps_IT.shape[1], x_BSI.shape[1]
    padded_BSI = F.pad(x_BSI, (0, 0, taps - 1, 0)) if before_BSI is None else torch.cat((before_BSI, x_BSI), 1)
    y_BSI = x_BSI * taps_IT[:, -1] if bias_I is None else torch.addcmul(bias_I, x_BSI, taps_IT[:, -1])
    for back in range(1, taps):
        first = taps - 1 - back
        earlier_BSI = padded_BSI[:, first : first + length]
        if starts_BS is not None:
            other_BS = torch.arange(length, device=x_BSI.device) - back < starts_BS
            earlier_BSI = earlier_BSI.masked_fill(other_BS.unsqueeze(-1), 0)
        y_BSI = torch.addcmul(y_BSI, earlier_BSI, taps_IT[:, first])
    return y_BSI, padded_BSI
