"""Gated activations, ScaleNorm, and one norm for both branches of a layer."""

from __future__ import annotations

import pytest
import torch

from neoxargs.registry.model import Norm
from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.mlp import feed_forward_activation
from neoxargs.train.model.norm import norm
from neoxargs.train.model.shared import Shared
from neoxargs.train.parallel.layers import Weights
from tests.support.small_gpt import VOCABULARY, batch, small

GATED = {
    "glu": lambda gate: 1 / (1 + (-gate).exp()),
    "bilinear": lambda gate: gate,
    "reglu": lambda gate: gate.clamp(min=0),
    "geglu": lambda gate: gate * (1 + (gate / 2**0.5).erf()) / 2,
    "swiglu": lambda gate: gate / (1 + (-gate).exp()),
}


@pytest.mark.parametrize("name", GATED)
def test_the_second_half_is_the_gate(name: str) -> None:
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(1))
    activation = feed_forward_activation(small(activation=name), Shared().recompute)
    torch.testing.assert_close(activation(x), x[:, :4] * GATED[name](x[:, 4:]))


def test_scalenorm_gives_vectors_one_length() -> None:
    layer = norm(8, Norm(norm="scalenorm"))
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close((3 * layer(x)).norm(dim=-1), torch.full((5,), 3.0))
    assert not layer(torch.zeros(1, 8)).any()


def test_tied_norms_feed_both_halves_alike() -> None:
    """With equal norms, tied and untied parallel residuals compute the same."""
    side = {"pos_emb": "rotary", "no_weight_tying": True, "gpt_j_residual": True}
    tied, untied = (GPT(small(**side, gpt_j_tied=choice), VOCABULARY, Weights(), Shared()) for choice in (True, False))
    tokens, _ = batch(2)
    assert torch.equal(tied(tokens), untied(tokens))
    assert len(list(untied.parameters())) == len(list(tied.parameters())) + 2 * 2
