"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864), applied to a part of the head dimension.

As in GPT-NeoX, dimension i is rotated together with dimension i + width / 2, where width is `rotary_pct` of the head
dimension. The dimensions beyond width are not rotated.
"""

from __future__ import annotations

import torch
from torch import Tensor

from neoxargs.train.kernels.tables import Tables


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate the first `width` dimensions of x, (batch, heads, seq, head_dim), by the angles of its tokens.

    cosine, sine: (seq, width / 2) if they are the same for all samples, else (batch, 1, seq, width / 2).
    """
    half = cosine.shape[-1]
    first, second, rest = x.split((half, half, x.shape[-1] - 2 * half), dim=-1)  # type: ignore[no-untyped-call]
    # The cosines and sines are fp32, and so are these products, also when x has 16 bits.
    rotated = (first * cosine - second * sine, second * cosine + first * sine)
    return torch.cat((*(part.to(x.dtype) for part in rotated), rest), dim=-1)


def cosine_and_sine(width: int, base: float, seq: int, device: torch.device, tables: Tables) -> tuple[Tensor, ...]:
    """Return cosine and sine of positions 0, 1, 2, ..., at least `seq` of them, each (positions, width / 2)."""
    return tables.rows(("rotary", width, base, device), seq, lambda size: _cosine_and_sine(size, width, base, device))


def _cosine_and_sine(seq: int, width: int, base: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cosine and sine, each (seq, width / 2), in fp32: in 16 bits large positions would become equal."""
    frequency = base ** -(torch.arange(0, width, 2, device=device, dtype=torch.float32) / width)
    angle = torch.arange(seq, device=device, dtype=torch.float32).outer(frequency)
    return angle.cos(), angle.sin()
