"""How the sets of `validation` are written, and the mean of their losses."""

from __future__ import annotations

from typing import Any

import pytest

from neoxargs.facts.mistakes import Mistakes
from neoxargs.facts.validation_sets import mean_loss, validation_sets
from tests.support.snapshots import pinned

WRONG: list[Any] = [
    {"a/b": "x"},
    {"a": {}},
    {"a": {"data_path": "x"}},
    {"a": {"files": "x"}},
    {"a": {"data_paths": "x", "wait": 2}},
    {"a": 3, "b": []},
    {"a": {"data_paths": "x", "weight": 0}},
    {"a": {"data_paths": ["x", "y"], "data_weights": [1]}},
    {"a": {"data_paths": "x", "data_weights": [0]}},
    {"a": {"data_paths": ["x", "y"], "label_data_paths": "z"}},
    {"a": {"data_paths": "x", "data_weights": "1"}},
    {"a": {"data_paths": ["x", "y"], "data_weights": [1, float("inf")]}},
    {"a": {"data_paths": "x", "weight": float("nan")}},
]


def test_what_is_written_of_a_set_and_of_their_mean() -> None:
    sets = validation_sets({"code": ["a", "b"], "law": {"data_paths": "c", "label_data_paths": "l", "weight": 3}})
    assert [each.part for each in sets] == ["validation/code", "validation/law"]
    assert [(each.paths, each.weights, each.labels) for each in sets] == [(["a", "b"], [1, 1], []), (["c"], [1], ["l"])]
    assert mean_loss(sets, {"code": 2.0, "law": 4.0}) == 3.5
    assert mean_loss(sets, {"code": 2.0}) == 2.0


def test_what_is_no_set() -> None:
    found = []
    for value in WRONG:
        with pytest.raises(Mistakes) as error:
            validation_sets(value)
        found += [f"{value}: {name}: {what}; {hint}" for name, what, hint in error.value.problems]
    pinned(found)
