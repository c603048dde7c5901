"""docs/long-context.md: its example runs, and four ranks have the losses of one on sequences of 8,192 tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from neoxargs.files import metrics
from tests.support.page_example import run_example

SHORT = "--set train_iters=2 --set checkpoint_factor=2 --set eval_interval=2 --set eval_iters=1 --set log_interval=1"


def recorded(folder: Path, event: str) -> dict[Any, tuple[float, ...]]:
    """Return the loss, and the gradient norm of a step, by step or by validation set."""
    rows = [row for row in metrics.read(folder / metrics.FILE) if row["event"] == event]
    return {
        row.get("split", row["step"]): tuple(row[name] for name in ("loss", "grad_norm") if name in row) for row in rows
    }


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_example_runs_and_four_ranks_have_the_losses_of_one(tmp_path: Path) -> None:
    printed = run_example("long-context.md", tmp_path, SHORT)
    assert "over 4 ranks" in printed
    runs = tmp_path / "runs" / "long-context"
    for event, count in (("step", 2), ("evaluation", 3)):
        here, alone = (recorded(runs / name, event) for name in ("8k", "alone"))
        assert len(here) == count and here.keys() == alone.keys()
        for key, values in here.items():
            assert values == pytest.approx(alone[key], rel=2e-6), key
