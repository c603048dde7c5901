"""The order of a mixture follows its shares, and what is changed later changes nothing before."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neoxargs.facts.mixture import CLOSE, LIMITLESS, Mixture, MixtureSchedule, Phase, limits, schedule_of
from neoxargs.train.batches.samples import mixed
from neoxargs.train.batches.samples.gpt_neox import blend_order
from neoxargs.train.batches.samples.mixed import mixed_order

SIZES = (400, 300, 7)
weights = st.lists(st.floats(0.001, 1), min_size=3, max_size=3)
phases = st.lists(st.tuples(st.sampled_from(["constant", "linear"]), weights), min_size=1, max_size=4)
most = st.lists(st.one_of(st.none(), st.sampled_from([0.5, 1.0, 2.5])), min_size=3, max_size=3)


def planned(
    listed: list[tuple[str, list[float]]], most: list[float | None], total: int, reach: int = 0
) -> tuple[MixtureSchedule, list[int]]:
    """Return the plan of phases of 130 samples each, and the limits of its sources."""
    found = [Phase(style, 130 * number, each, 1.0) for number, (style, each) in enumerate(listed, 1)]
    mixture = Mixture(found, most)
    return schedule_of(mixture, [1, 1, 1], SIZES, total, reach), limits(mixture, SIZES)


@given(phases, most)
@settings(deadline=None, max_examples=100)
def test_each_source_has_its_share_at_every_end_of_a_piece_and_at_most_its_limit(
    listed: list[tuple[str, list[float]]], most: list[float | None]
) -> None:
    found, limit = planned(listed, most, 500)
    order = mixed_order(found, limit)
    assert len(order["source"]) == int(found.end + CLOSE)
    for end, read in found.drawn():
        counts = np.bincount(order["source"][: int(end + CLOSE)], minlength=3)
        assert np.abs(counts - read).max() < 3
        assert (counts <= limit).all()
    for number in range(3):  # every sample of a source once, in its order
        assert (order["index"][order["source"] == number] == np.arange((order["source"] == number).sum())).all()


@given(phases, phases, most)
@settings(deadline=None, max_examples=100)
def test_what_is_changed_later_changes_nothing_before(
    first: list[tuple[str, list[float]]], later: list[tuple[str, list[float]]], most: list[float | None]
) -> None:
    same = 130 * len(first)
    orders = [mixed_order(*planned([*first, *more], most, total)) for more, total in (([], same), (later, same + 99))]
    short = min(same, *(len(order["source"]) for order in orders))
    for name in ("source", "index"):
        assert (orders[0][name][:short] == orders[1][name][:short]).all()


@given(phases, most, st.integers(1, 600), st.integers(0, 300))
@settings(deadline=None, max_examples=100)
def test_samples_beyond_the_run_change_none_of_it_and_are_those_of_a_longer_run(
    listed: list[tuple[str, list[float]]], most: list[float | None], total: int, more: int
) -> None:
    run, beyond, longer = (
        mixed_order(*planned(listed, most, *lengths)) for lengths in ((total,), (total, total + more), (total + more,))
    )
    for name in ("source", "index"):
        assert (beyond[name][: len(run[name])] == run[name]).all()
    # Shares that move to the end of the run move differently in a longer one.
    if all(style == "constant" for style, _ in listed):
        assert all((beyond[name] == longer[name]).all() for name in ("source", "index"))
    assert len(beyond["source"]) <= total + more


def test_without_changes_it_is_the_blend_of_gpt_neox() -> None:
    shares = [0.7, 0.29, 0.01]
    found = schedule_of(Mixture([Phase("constant", None, shares, 1.0)], [None] * 3), [1, 1, 1], SIZES, 5000)
    order, blend = mixed_order(found, [LIMITLESS] * 3), blend_order(shares, 5000)
    assert all((order[name] == blend[name]).all() for name in ("source", "index"))


def test_long_pieces_are_ordered_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    found, limit = planned([("constant", [3, 2, 1]), ("constant", [1, 2, 3])], [None] * 3, 5000)
    whole = mixed_order(found, limit)
    monkeypatch.setattr(mixed, "TOGETHER", 100)
    parts = mixed_order(found, limit)
    assert (whole["source"] == parts["source"]).mean() > 0.99
    assert (np.bincount(whole["source"]) == np.bincount(parts["source"])).all()
