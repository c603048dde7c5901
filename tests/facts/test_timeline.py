"""When a run saves and evaluates."""

from __future__ import annotations

from typing import Any

import pytest

from neoxargs.facts.timeline import Timeline, save_iterations
from neoxargs.registry.checkpoint import Checkpoint
from neoxargs.resolve import File, complete, draft
from tests.support import smallest


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, set()),
        ({"checkpoint_factor": 30}, {30, 60, 90}),
        ({"checkpoint_factor": 30.0}, {30, 60, 90}),
        ({"checkpoint_factor": 30, "extra_save_iters": [0, 7]}, {7, 30, 60, 90}),
        ({"checkpoint_factor": 2, "checkpoint_scale": "log"}, {1, 2, 4, 8, 16, 32, 64}),
        ({"checkpoint_factor": 2.5, "checkpoint_scale": "log"}, {1, 3, 8, 20, 50}),
        ({"extra_save_iters": [5, 100, 200]}, {5}),
    ],
)
def test_save_iterations(options: dict[str, Any], expected: set[int]) -> None:
    assert save_iterations(Checkpoint(**options), 100) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("eval_interval: 30\n", [30, 60, 90, 100]),
        ("eval_interval: 50\n", [50, 100]),
        ("eval_interval: 30\neval_iters: 0\n", []),
        ("eval_interval: 30\ndo_valid: false\n", []),
    ],
)
def test_evaluation_iterations(text: str, expected: list[int]) -> None:
    config = complete(draft([File("my.yml", smallest.YAML.replace("train_iters: 10", "train_iters: 100") + text)]), 1)
    assert Timeline(config, validates=True).evaluations == expected
    assert Timeline(config, validates=False).evaluations == []
