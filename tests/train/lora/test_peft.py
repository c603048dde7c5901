"""Adapters against peft's, on every layout: logits, gradients, three steps, and adapters exported and imported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.peft_models import CASES, Difference, on_layout, prepare
from tests.support.ranks import run_ranks

pytest.importorskip("peft")
TOLERANCE = 1e-5
LAYOUTS: dict[int, dict[str, dict[str, Any]]] = {
    1: {"one process": {}},
    2: {
        "tp2": {"model_parallel_size": 2},
        "tp2 sequence": {"model_parallel_size": 2, "sequence_parallel": True},
        "pp2": {"pipe_parallel_size": 2},
        "pp2 recomputed": {"pipe_parallel_size": 2, "checkpoint_activations": True},
        "dp2": {},
        "ZeRO-1": {"zero_optimization.stage": 1},
        "ZeRO-2": {"zero_optimization.stage": 2},
        "ZeRO-3": {"zero_optimization.stage": 3},
        "ZeRO-3 recomputed": {"zero_optimization.stage": 3, "checkpoint_activations": True},
    },
    4: {"tp2 x pp2": {"model_parallel_size": 2, "pipe_parallel_size": 2}},
}  # fmt: skip


def on_ranks(folder: str, layouts: dict[str, dict[str, Any]]) -> dict[str, Difference]:
    """Return the differences of each layout on this rank."""
    from neoxargs.train.process import mesh, setup

    process, found = setup.start("gloo", seed=1), {}
    for name, changes in layouts.items():
        found[name] = on_layout(folder, changes, process)
        mesh.destroy_groups()
    return found


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", CASES)
def test_every_layout_computes_what_peft_computes(name: str, tmp_path: Path) -> None:
    prepare(tmp_path, CASES[name])
    for world, layouts in LAYOUTS.items():
        ranks = run_ranks(on_ranks, world, str(tmp_path), layouts, timeout=250)
        for layout in layouts:
            found = [rank[layout] for rank in ranks]
            logits = [one.logits for one in found if one.logits is not None]
            assert bool(logits) is (layout != "tp2 sequence")
            assert all(0 <= off < 1e-4 for off in logits), (layout, logits)
            assert 0 < max(one.gradients for one in found) < 2e-5, (layout, found)
            assert 0 < max(one.weights for one in found) < 2e-5, (layout, found)
            assert max(one.losses for one in found) < 1e-5, (layout, found)
