"""Packers beside plain readings of their rules, and beside trl's."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from neoxargs.files.token_files import packing
from tests.support.finetuning import lengths
from tests.support.finetuning_table import other_samples


def samples(packed: packing.Packed) -> list[list[int]]:
    """Return the documents of each sample."""
    return [packed.documents[a:b].tolist() for a, b in zip(packed.bounds, packed.bounds[1:], strict=False)]


def plain_overflow(order: Sequence[int], sizes: Sequence[int], window: int) -> list[list[int]]:
    """Fill samples document by document; a new one begins when the next document does not fit."""
    found: list[list[int]] = [[]]
    for document in order:
        if found[-1] and sum(min(sizes[d], window) for d in found[-1]) + min(sizes[document], window) > window:
            found.append([])
        found[-1].append(document)
    return found


def plain_best_fit(sizes: Sequence[int], window: int) -> list[list[int]]:
    """Put each document, longest first, into the sample with the least free space that is enough.

    Of several with the same space, into the one that has had it for longest.
    """
    found: list[list[int]] = []
    for document in sorted(range(len(sizes)), key=lambda d: -sizes[d]):
        free = [window - sum(sizes[d] for d in documents) for documents in found]
        fits = [place for place in range(len(found)) if free[place] >= sizes[document]]
        sample = found.pop(min(fits, key=free.__getitem__)) if fits else []
        found.append([*sample, document])
    return found


@pytest.fixture(params=range(5))
def sizes(request: pytest.FixtureRequest) -> list[int]:
    random = np.random.default_rng(request.param)
    return random.integers(1, [5, 20, 40, 70, 9][request.param], 300).tolist()  # type: ignore[no-any-return]


def test_unpacked_is_one_document_per_sample_in_another_order(sizes: list[int]) -> None:
    packed = packing.pack("unpacked", lengths(sizes), None, 33, True, seed=1)
    found = samples(packed)
    assert all(len(documents) == 1 for documents in found)
    assert sorted(d for [d] in found) == [d for d, size in enumerate(sizes) if size > 1] != [d for [d] in found]
    assert packed.untrained == sizes.count(1)


def test_until_overflow_agrees_with_a_plain_reading(sizes: list[int]) -> None:
    packed = packing.pack("pack_until_overflow", lengths(sizes), None, 33, True, seed=1)
    order = packed.documents.tolist()
    assert sorted(order) == [d for d, size in enumerate(sizes) if size > 1] != order
    assert samples(packed) == plain_overflow(order, sizes, 33)


def test_best_fit_agrees_with_a_plain_reading(sizes: list[int]) -> None:
    cut = np.minimum(lengths(sizes), 33)
    order, bounds = packing.best_fit(cut, 33)
    found = sorted(sorted(cut[order[a:b]].tolist()) for a, b in itertools.pairwise(bounds))
    expected = plain_best_fit(cut.tolist(), 33)
    assert sorted(order.tolist()) == list(range(300))
    assert all(sum(sample) <= 33 for sample in found)
    assert found == sorted(sorted(int(cut[d]) for d in documents) for documents in expected)


@pytest.mark.slow
def test_best_fit_makes_the_samples_of_trl(sizes: list[int]) -> None:
    """Documents of the same lengths in the same order."""
    pytest.importorskip("trl")
    assert other_samples(np.array(sizes), 33) == 0


@pytest.mark.parametrize("how", ["unpacked", "pack_until_overflow", "best_fit"])
def test_documents_that_are_left_out_are_counted(how: packing.How) -> None:
    sizes = [4, 9, 30, 7, 12, 2]
    trained = np.array([3, 0, 5, 1, 0, 1])
    chopped = packing.pack(how, lengths(sizes), trained, 10, True, seed=3)
    assert sorted(chopped.documents.tolist()) == [0, 2, 3, 5]
    assert (chopped.too_long, chopped.untrained) == (0, 2)
    whole = packing.pack(how, lengths(sizes), trained, 10, False, seed=3)
    assert sorted(whole.documents.tolist()) == [0, 3, 5]
    assert (whole.too_long, whole.untrained) == (2, 1)


@pytest.mark.parametrize("how", ["unpacked", "pack_until_overflow", "best_fit"])
def test_nothing_is_left(how: packing.How) -> None:
    """GPT-NeoX looks for a document for ever, or reads behind its list."""
    packed = packing.pack(how, lengths([5, 6]), np.zeros(2, np.int64), 10, True, seed=1)
    assert packed.samples == 0 and packed.untrained == 2


def test_samples_of_best_fit_are_not_in_order_of_their_lengths(sizes: list[int]) -> None:
    made = packing.pack("best_fit", lengths(sizes), None, 33, True, seed=1)
    cut = np.minimum(lengths(sizes), 33)
    longest = [max(cut[sample].tolist()) for sample in samples(made)]
    assert len(set(longest)) > 1 and longest != sorted(longest, reverse=True)
    assert sorted(made.documents) == sorted(np.flatnonzero(cut > 1))


def test_the_seed_decides_the_order() -> None:
    sizes = lengths([5] * 40)
    first, again, other = (
        packing.pack("unpacked", sizes, None, 9, True, seed).documents.tolist() for seed in (1, 1, 2)
    )
    assert first == again != other


@pytest.mark.slow
def test_a_million_documents_are_packed() -> None:
    """In a second. A search for the best sample for each document would take hours."""
    sizes = np.random.default_rng(1).integers(2, 3000, 1_000_000)
    for how in ("pack_until_overflow", "best_fit"):
        packed = packing.pack(how, sizes, None, 4097, True, seed=1)  # type: ignore[arg-type]
        ends = np.concatenate(([0], np.cumsum(sizes[packed.documents])))[packed.bounds]
        assert np.diff(ends).max() <= 4097
    assert packed.samples < 1.01 * sizes.sum() / 4097
