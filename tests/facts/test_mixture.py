"""The shares of a mixture, by hand and by their definition."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neoxargs.facts.batch_sizes import BatchSizes
from neoxargs.facts.lengths import Sizes
from neoxargs.facts.mistakes import Mistakes
from neoxargs.facts.mixture import CLOSE, Mixture, phases, schedule_of, used_up

#: 100 iterations of 10 samples of 50 tokens.
SIZES = Sizes(100, BatchSizes([(0, 10)]), 50)


def mixture(*listed: Any, most: list[float | None] | None = None) -> Mixture:
    return Mixture(phases(listed, 2, SIZES), most or [None, None])


def counts(found: Mixture, sizes: tuple[int, ...] = (1000, 1000), first: tuple[float, ...] = (1, 1)) -> list[float]:
    """Return how many samples the first source has at each end of a piece."""
    return [read[0] for _, read in schedule_of(found, first, sizes, 1000).drawn()]


@pytest.mark.parametrize("until", [60, 0.6, "60%", "600 samples", "30K tokens", "0.03M tokens"])
def test_a_phase_ends_after_iterations_a_share_samples_or_tokens(until: object) -> None:
    found = schedule_of(mixture({"until": until, "weights": [3, 1]}, {"weights": [1, 3]}), [1, 1], [9, 9], 1000)
    assert [(piece.begin, list(piece.shares)) for piece in found.pieces] == [(0, [0.75, 0.25]), (600, [0.25, 0.75])]
    assert found.drawn() == [(0, [0, 0]), (600, [450, 150]), (1000, [550, 450])]


def test_a_phase_that_moves_has_the_mean_of_its_ends_and_then_stays_at_the_last() -> None:
    moving = mixture({"style": "linear", "until": "50%", "weights": [0, 1]})
    read = counts(moving, first=(1, 0))
    assert read[-2] == pytest.approx(250) and read[-1] == read[-2]
    # The integral of Megatron-LM's curve over the phase; each of 100 steps has the share of its middle.
    cosine = counts(mixture({"style": "cosine", "weights": [0, 1]}), first=(1, 0))
    exact = [1000 * (share / 2 + math.sin(math.pi * share) / 2 / math.pi) for share in (0.25, 0.5, 1)]
    assert [cosine[25], cosine[50], cosine[100]] == pytest.approx(exact, rel=1e-3)


def test_temperature_weighs_by_the_size_to_the_power_of_its_inverse() -> None:
    found = [
        schedule_of(mixture({"temperature": t}), [1, 1], [900, 100], 1000).pieces[0].shares[0] for t in (1, 2, 1e9)
    ]
    assert found == pytest.approx([0.9, 0.75, 0.5])


def test_a_source_that_is_used_up_leaves_its_share_to_the_others() -> None:
    found = schedule_of(mixture({"weights": [1, 1]}, most=[None, 2]), [1, 1], [900, 100], 1000)
    assert found.drawn() == [(0, [0, 0]), (400, [200, 200]), (1000, [800, 200])]
    assert used_up(found, 1000) is None
    short = schedule_of(mixture({"weights": [1, 1]}, most=[0.5, 2]), [1, 1], [900, 100], 1000)
    assert short.end == pytest.approx(650)
    problem = used_up(short, 1000)
    assert problem is not None and "650 of 1,000" in problem.what
    # As many as there are is enough, and one more is not.
    assert used_up(schedule_of(mixture({"weights": [3, 7]}, most=[0.5, 2]), [1, 1], [900, 100], 650), 650) is None
    assert used_up(schedule_of(mixture({"weights": [3, 7]}, most=[0.5, 2]), [1, 1], [900, 100], 651), 651)


@given(
    weights=st.lists(st.lists(st.floats(0.01, 9), min_size=3, max_size=3), min_size=1, max_size=4),
    style=st.sampled_from(["constant", "linear", "exponential", "minus_sqrt"]),
    most=st.lists(st.one_of(st.none(), st.floats(0.1, 3)), min_size=3, max_size=3),
)
@settings(deadline=None, max_examples=60)
def test_shares_add_up_to_one_and_no_source_exceeds_its_limit(
    weights: list[list[float]], style: str, most: list[float | None]
) -> None:
    listed = [{"style": style, "until": 20 * number, "weights": each} for number, each in enumerate(weights, 1)]
    found = schedule_of(Mixture(phases(listed, 3, SIZES), most), [1, 1, 1], [300, 200, 100], 1000)
    assert all(sum(piece.shares) == pytest.approx(1) and min(piece.shares) >= 0 for piece in found.pieces)
    for samples, read in found.drawn():
        assert sum(read) == pytest.approx(samples)
        assert all(
            of <= limit * size + CLOSE for of, limit, size in zip(read, most, (300, 200, 100), strict=True) if limit
        )


@pytest.mark.parametrize(
    ("listed", "wrong"),
    [
        ([3], 1),
        ([{"weights": [1, 1], "until": 5}, {"weights": [1, 1], "until": 5}], 1),
        ([{"weights": [1, 1], "until": 5, "form": 1}, {"weights": [1]}], 2),
        ([{"weights": [1, 1]}, {"until": "soon"}], 3),
        ([{"weights": [0, 0], "style": "lineal"}], 2),
        ([{"weights": [1, True], "temperature": 0}], 3),
        ([{"weights": [1, float("inf")]}], 1),
    ],
)
def test_all_mistakes_are_found_at_once(listed: list[Any], wrong: int) -> None:
    with pytest.raises(Mistakes) as raised:
        mixture(*listed)
    assert len(raised.value.problems) == wrong
