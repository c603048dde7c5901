"""What layers do for speed's sake gives what they would give without."""

from __future__ import annotations

import pytest
import torch

from neoxargs.train.engine.pipeline import count_weights
from neoxargs.train.model.parts import build, parts
from neoxargs.train.model.shared import Shared
from neoxargs.train.parallel.init import METHODS
from neoxargs.train.parallel.layers import Ranks, Shapes, VocabEmbedding, Weights
from neoxargs.train.process.mesh import Axis
from tests.support.small_gpt import VOCABULARY, small


def test_rows_added_to_a_gradient_are_the_gradient_to_the_last_bit() -> None:
    found = []
    for adds_rows in (False, True):
        embedding = VocabEmbedding(50, 8, METHODS["normal"](1.0, 1, 8), Weights())
        embedding.adds_rows = adds_rows
        generator = torch.Generator().manual_seed(2)
        for _ in range(3):
            tokens = torch.randint(7, (2, 40), generator=generator)  # many of them several times
            (embedding(tokens) * torch.randn(2, 40, 8, generator=generator)).sum().backward()
        found.append(embedding.weight.grad)
    assert found[0] is not None
    assert found[0].abs().sum() > 0
    assert torch.equal(*found)


@pytest.mark.parametrize("changes", [{}, {"no_weight_tying": True, "pos_emb": "rpe", "use_qk_layernorm": True}])
@pytest.mark.parametrize("ranks", [1, 2])
def test_layers_are_sized_up_without_being_built(changes: dict[str, object], ranks: int) -> None:
    weights, config = Weights(ranks=Ranks(Axis(ranks))), small(**changes)
    found = parts(config, VOCABULARY, weights, Shared())
    modules = build(found)
    assert count_weights(parts(config, VOCABULARY, Shapes(**vars(weights)), Shared())) == [
        sum(weight.numel() for weight in modules[part.name].parameters()) for part in found if part.runs
    ]
