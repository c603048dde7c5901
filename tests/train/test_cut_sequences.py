"""Samples that are cut into shorter sequences compute what whole samples do whose pieces are separate documents."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from neoxargs.facts.layer_kinds import RECURRENT
from neoxargs.train.losses.cross_entropy import IGNORED
from neoxargs.train.micro_batch import MicroBatch
from neoxargs.train.model.documents import document_starts
from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.shared import Shared
from neoxargs.train.parallel.layers import Weights
from tests.support.small_gpt import VOCABULARY, batch, randomised, small

LENGTH = 4
SEPARATE = {"reset_attention_mask": True, "reset_position_ids": True}
MODELS: dict[str, dict[str, Any]] = {
    "learned": {},
    "rotary": {"pos_emb": "rotary"},
    "alibi": {"pos_emb": "alibi"},
    "window": {"pos_emb": "rotary", "sliding_window_width": 3},
    "parallel": {"gpt_j_residual": True, "pos_emb": "rotary"},
    "mamba": {"attention_config": ["mamba", "global"], "mamba_inner_size": 48},
    "rwkv": {"attention_config": ["rwkv", "global"], "dim_att": 32, "head_size": 8, "ffn_dim": 96},
    "experts": {"moe_num_experts": 4},
}


def gradients(config: dict[str, Any], given: MicroBatch) -> dict[str, Tensor]:
    """Return the loss and the gradient of each weight."""
    torch.manual_seed(1)
    model = randomised(GPT(small(**config), VOCABULARY, Weights(), Shared()))
    loss = model(**vars(given))
    loss.backward()
    found = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    return {"loss": loss.detach(), **found}


@pytest.mark.parametrize("with_documents", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_cut_samples_are_samples_of_separate_pieces(name: str, with_documents: bool) -> None:
    tokens, labels = batch(3)
    labels[0, 5] = labels[2, 3] = IGNORED
    positions = torch.arange(tokens.shape[1])
    starts = document_starts(tokens.masked_fill(tokens % 7 == 0, VOCABULARY.eod), VOCABULARY.eod)
    starts = starts if with_documents else torch.zeros_like(starts)
    pieces = torch.maximum(starts, positions // LENGTH * LENGTH)
    whole = gradients(MODELS[name] | SEPARATE, MicroBatch(tokens, labels, pieces))
    given = MicroBatch(tokens, labels, starts if with_documents else None).cut(LENGTH)
    assert given.tokens.shape == (12, LENGTH)
    cut = gradients(MODELS[name] | (SEPARATE if with_documents else {}), given)
    uncut = gradients(MODELS[name] | SEPARATE, MicroBatch(tokens, labels, starts))
    assert abs(uncut["loss"] - cut["loss"]) > 1e-5
    assert whole.keys() == cut.keys()
    for weight, value in whole.items():
        apart = float((cut[weight] - value).norm() / value.norm().clamp(min=1e-3))
        assert apart < (1e-5 if name in RECURRENT else 2e-6), f"{weight}: {apart}"
