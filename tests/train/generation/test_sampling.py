"""Sampling of the next token."""

import pytest
import torch

from neoxargs.registry.generation import Generation
from neoxargs.train.generation.sampling import choose, keep_top_k, keep_top_p

LOGITS = torch.log(torch.tensor([[0.1, 0.4, 0.2, 0.3], [0.7, 0.1, 0.1, 0.1]]))


def frequencies(draws: int = 4000, **options) -> list[list[float]]:
    """Return the frequency of each token for the two rows."""
    random = torch.Generator().manual_seed(7)
    chosen = choose(LOGITS.repeat_interleave(draws, 0), Generation(**options), random).view(2, draws)
    return [[float((row == token).float().mean()) for token in range(4)] for row in chosen]


def test_temperature_0_takes_the_most_likely_token() -> None:
    random = torch.Generator()
    assert choose(LOGITS, Generation(temperature=0.0, top_k=3, top_p=0.5), random).tolist() == [1, 0]
    assert choose(torch.zeros(1, 5), Generation(temperature=0.0), random).tolist() == [0]


def test_temperature_1_draws_from_the_models_probabilities() -> None:
    first, second = frequencies(temperature=1.0)
    assert first == pytest.approx([0.1, 0.4, 0.2, 0.3], abs=0.03)
    assert second == pytest.approx([0.7, 0.1, 0.1, 0.1], abs=0.03)


def test_temperature_sharpens_and_flattens() -> None:
    squared = torch.tensor([0.01, 0.16, 0.04, 0.09]) / 0.30
    assert frequencies(temperature=0.5)[0] == pytest.approx(squared.tolist(), abs=0.03)
    assert frequencies(temperature=100.0)[1] == pytest.approx([0.25] * 4, abs=0.03)


def test_top_k() -> None:
    assert frequencies(temperature=1.0, top_k=2)[0] == pytest.approx([0, 4 / 7, 0, 3 / 7], abs=0.03)
    assert keep_top_k(torch.zeros(1, 4), 2).isfinite().sum() == 2  # equals do not all come along
    assert torch.equal(keep_top_k(LOGITS, 0), LOGITS) and torch.equal(keep_top_k(LOGITS, 9), LOGITS)


@pytest.mark.parametrize(
    ("share", "kept"), [(0.39, [1]), (0.41, [1, 3]), (0.71, [1, 2, 3]), (0.95, [0, 1, 2, 3]), (1e-9, [1])]
)
def test_top_p_keeps_the_likeliest_until_the_share_is_reached(share, kept) -> None:
    assert keep_top_p(LOGITS, share)[0].isfinite().nonzero().flatten().tolist() == kept
    assert torch.equal(keep_top_p(LOGITS, 0.0), LOGITS) and torch.equal(keep_top_p(LOGITS, 1.0), LOGITS)


def test_the_same_seed_the_same_tokens() -> None:
    draws = [
        choose(LOGITS.repeat(50, 1), Generation(temperature=1.0), torch.Generator().manual_seed(seed)).tolist()
        for seed in (1, 1, 2)
    ]
    assert draws[0] == draws[1] != draws[2]


def test_half_precision_logits() -> None:
    assert choose(LOGITS.bfloat16(), Generation(temperature=1.0), torch.Generator()).shape == (2,)
