"""Sampling of the next token from logits."""

from __future__ import annotations

import torch
from torch import Tensor

from neoxargs.registry.generation import Generation


def choose(logits: Tensor, options: Generation, random: torch.Generator) -> Tensor:
    """Draw one token for each row of logits: (batch, vocabulary) -> (batch).

    Temperature 0 takes the most likely token, the first one of equals. Computed on the CPU and in fp32, so that a seed
    gives the same tokens on every device.
    """
    logits = logits.float().cpu()
    if options.temperature == 0:
        return logits.argmax(-1)
    logits = keep_top_p(keep_top_k(logits / options.temperature, options.top_k), options.top_p)
    return torch.multinomial(logits.softmax(-1), 1, generator=random).squeeze(-1)


def keep_top_k(logits: Tensor, count: int) -> Tensor:
    """(batch, vocabulary): set all but the `count` largest logits of each row to -inf; 0 keeps all."""
    if not 0 < count < logits.shape[-1]:
        return logits
    keep = logits.topk(count, dim=-1).indices
    return torch.full_like(logits, -torch.inf).scatter(-1, keep, logits.gather(-1, keep))


def keep_top_p(logits: Tensor, share: float) -> Tensor:
    """Keep the most likely tokens of each row until their probabilities add up to `share`; set the others to -inf.

    logits: (batch, vocabulary). At least one token is kept; a share of 0 or 1 keeps all. Holtzman et al. 2019,
    arXiv:1904.09751.
    """
    if not 0 < share < 1:
        return logits
    ordered, order = logits.sort(dim=-1, descending=True)
    probabilities = ordered.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities  # sum over the more likely tokens
    return torch.empty_like(logits).scatter(-1, order, ordered.masked_fill(before >= share, -torch.inf))
