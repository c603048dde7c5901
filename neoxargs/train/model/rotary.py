"""Rotary positions (Su et al. 2021, arXiv:2104.09864): queries and keys turn by an angle that grows with the position.

As in GPT-NeoX, dimension i turns together with dimension i + half of those that turn, and dimensions beyond
`rotary_pct` of the head stay as they are.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


def rotate(x: Tensor, width: int, base: float, positions: Tensor | None = None, reach: int = 0) -> Tensor:
    """(batch, heads, seq, head_dim) with its first `width` dimensions turned by their position.

    positions: (batch, seq); left out, the place in the sequence. reach: what all of them are below, where they may be
    beyond the length of x.
    """
    seq = x.shape[2]
    cosine, sine = _turn(max(seq, reach), width, base, x.device)
    if positions is not None:
        cosine, sine = cosine[positions].unsqueeze(1), sine[positions].unsqueeze(1)  # (batch, 1, seq, width / 2)
    else:
        cosine, sine = cosine[:seq], sine[:seq]
    first, second, rest = x.split((width // 2, width // 2, x.shape[-1] - width), dim=-1)  # type: ignore[no-untyped-call]
    # The angles are fp32, and so are these products.
    turned = (first * cosine - second * sine, second * cosine + first * sine)
    return torch.cat((*(part.to(x.dtype) for part in turned), rest), dim=-1)


@lru_cache(maxsize=4)
def _turn(seq: int, width: int, base: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine (seq, width / 2), kept for all layers.

    Not buffers of a module: DeepSpeed casts those to 16 bits with the weights, where far positions run together.
    """
    speed = base ** -(torch.arange(0, width, 2, device=device, dtype=torch.float32) / width)
    angle = torch.arange(seq, device=device, dtype=torch.float32).outer(speed)
    return angle.cos(), angle.sin()
