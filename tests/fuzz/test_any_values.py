"""Random trees with names of the registry and arbitrary values give an answer, never a traceback."""

from __future__ import annotations

import json
from typing import Any

import pytest

hypothesis = pytest.importorskip("hypothesis")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as some  # noqa: E402

from neoxargs.registry import REGISTRY  # noqa: E402
from tests.fuzz.judge import Input, judged  # noqa: E402
from tests.fuzz.mutant import Mutant  # noqa: E402

NAMES = sorted({*REGISTRY.parameters, *REGISTRY.renamed, *REGISTRY.sections})
KEYS = some.sampled_from([name.rpartition(".")[2] for name in NAMES]) | some.text(max_size=8)
SCALARS = some.none() | some.booleans() | some.integers() | some.floats() | some.text() | some.just("auto")
TREES = some.dictionaries(
    KEYS, some.recursive(SCALARS, lambda inner: some.lists(inner) | some.dictionaries(KEYS, inner))
)


def nested(values: dict[str, Any]) -> dict[str, Any]:
    """Return dotted names as nested sections."""
    tree: dict[str, Any] = {}
    for name, value in values.items():
        *sections, last = name.split(".")
        branch = tree
        for section in sections:
            branch = inner if isinstance(inner := branch.setdefault(section, {}), dict) else {}
        branch[last] = value
    return tree


@pytest.mark.parametrize("reader", ["check", "migrate", "others"])
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(tree=TREES | some.dictionaries(some.sampled_from(NAMES), SCALARS).map(nested))
def test_an_answer(reader: str, tree: dict[str, Any]) -> None:
    name = "ds_config.json" if reader == "others" else "my.yml"
    assert judged(Input(Mutant(json.dumps(tree), "a tree"), reader, name)).faults == []
