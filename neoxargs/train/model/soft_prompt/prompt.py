"""Soft prompt tuning (Lester et al. 2021, arXiv:2104.08691): trained embeddings before the text, in a frozen model.

The first `num_tokens` positions of every sample belong to the prompt. The text is moved there to the right, and tokens
that then have no place are cut off; the layers and their masks therefore know nothing of the prompt. Positions of the
prompt hold token 0, whose embedding the prompt replaces, and have no labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from neoxargs.registry.architectures import SoftPrompt
from neoxargs.train.losses.cross_entropy import IGNORED
from neoxargs.train.micro_batch import MicroBatch
from neoxargs.train.parallel.init import uniform
from neoxargs.train.parallel.layers import Weights

#: Name of the prompt's weight in the module that holds it, and in the model.
WEIGHT = "soft_prompt"
NAME = f"positions.{WEIGHT}"
#: The token at the positions of the prompt.
PLACEHOLDER = 0


def prompt(options: SoftPrompt, hidden_size: int, weights: Weights) -> nn.Parameter | None:
    """Return the prompt (num_tokens, D) with random initial values; None without a prompt."""
    if not options.enabled:
        return None
    return weights.parameter(WEIGHT, (options.num_tokens, hidden_size), uniform(options.init_range))


def insert(prompt_SD: Tensor, hidden_BSD: Tensor, runs: Sequence[range]) -> Tensor:
    """Replace the embeddings at the positions of the prompt. runs: the positions of hidden_BSD."""
    pieces: list[Tensor] = []
    for run, piece_BSD in zip(runs, hidden_BSD.split([len(run) for run in runs], dim=1), strict=True):
        own_SD = prompt_SD[run.start : run.stop].to(hidden_BSD.dtype)
        pieces += own_SD.expand(len(hidden_BSD), -1, -1), piece_BSD[:, len(own_SD) :]
    # Also if none of the positions is the prompt's: every sequence parallel rank takes part in the backward pass.
    return torch.cat(pieces, dim=1)


def make_room(batch: MicroBatch, count: int) -> MicroBatch:
    """Move tokens and labels to the right by the length of the prompt, and cut off as many at the end."""
    if not count:
        return batch
    front_BS = batch.tokens.new_zeros(len(batch.tokens), count)
    tokens_BS = torch.cat((front_BS + PLACEHOLDER, batch.tokens[:, :-count]), dim=1)
    labels_BS = torch.cat((front_BS + IGNORED, batch.labels[:, :-count]), dim=1)
    return replace(batch, tokens=tokens_BS, labels=labels_BS)


def is_prompt(name: str) -> bool:
    """Whether a weight is the prompt, by its name in any module."""
    return name.endswith(WEIGHT)
