"""The precision of what must not be computed in 16 bits."""

from __future__ import annotations

import torch
from torch import Tensor


def widened(x: Tensor) -> Tensor:
    """Return x in fp32, or as it is in fp64."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
