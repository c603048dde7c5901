"""Sampling of the next token from logits."""

from __future__ import annotations

import torch
from torch import Tensor

from neoxargs.registry.generation import Generation


def choose(logits_BV: Tensor, options: Generation, random: torch.Generator) -> Tensor:
    """Draw one token for each row of logits, (B).

    Temperature 0 takes the most likely token, the first one of equals. Computed on the CPU and in fp32, so that a seed
    gives the same tokens on every device.
    """
    logits_BV = logits_BV.float().cpu()
    if options.temperature == 0:
        return logits_BV.argmax(-1)
    logits_BV = keep_top_p(keep_top_k(logits_BV / options.temperature, options.top_k), options.top_p)
    return torch.multinomial(logits_BV.softmax(-1), 1, generator=random).squeeze(-1)


def keep_top_k(logits_BV: Tensor, count: int) -> Tensor:
    """Set all but the `count` largest logits of each row to -inf; 0 keeps all."""
    if not 0 < count < logits_BV.shape[-1]:
        return logits_BV
    keep = logits_BV.topk(count, dim=-1).indices  # (B, count)
    return torch.full_like(logits_BV, -torch.inf).scatter(-1, keep, logits_BV.gather(-1, keep))


def keep_top_p(logits_BV: Tensor, share: float) -> Tensor:
    """Keep the most likely tokens of each row until their probabilities add up to `share`; set the others to -inf.

    At least one token is kept; a share of 0 or 1 keeps all. Holtzman et al. 2019, arXiv:1904.09751.
    """
    if not 0 < share < 1:
        return logits_BV
    ordered_BV, order_BV = logits_BV.sort(dim=-1, descending=True)
    probabilities_BV = ordered_BV.softmax(-1)
    before_BV = probabilities_BV.cumsum(-1) - probabilities_BV  # sum over the more likely tokens
    return torch.empty_like(logits_BV).scatter(-1, order_BV, ordered_BV.masked_fill(before_BV >= share, -torch.inf))
