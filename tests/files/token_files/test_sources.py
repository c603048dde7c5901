"""How often the sources of a split are drawn from."""

from __future__ import annotations

import pytest

from neoxargs.files.token_files.sources import Source, added, weights
from neoxargs.registry.data import Data

SIZES = {"a": 100, "b": 300}


@pytest.mark.parametrize(
    ("sources", "data", "expected"),
    [
        ([Source("a"), Source("b")], Data(), [100, 300]),
        ([Source("a", weight=0.7), Source("b", weight=0.3)], Data(), [0.7, 0.3]),
        ([Source("a")], Data(weight_by_num_documents=True), [1.0]),
        # the share p of all documents gets p (1 - p)
        ([Source("a"), Source("b")], Data(weight_by_num_documents=True, weighted_sampler_alpha=1.0), [0.5, 0.5]),
    ],
)
def test_weights(sources: list[Source], data: Data, expected: list[float]) -> None:
    found = weights(sources, data, lambda source: SIZES[source.prefix], lambda source: SIZES[source.prefix])
    assert found == pytest.approx(expected)


def test_numbers_are_added_from_left_to_right_in_every_version_of_python() -> None:
    """`sum` gives 1.0 from Python 3.12 on, with which a blend has another order than GPT-NeoX's."""
    assert added([0.1] * 10) == 0.9999999999999999
