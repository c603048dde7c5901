"""docs/continued-pretraining.md: its example runs, and the ledger counts what was read over both launches."""

from __future__ import annotations

from pathlib import Path

import pytest

from neoxargs.files import metrics
from tests.support.page_example import run_example

#: The run is interrupted in the middle, while the shares change.
SHORT = "--set train_iters=8 --set eval_interval=2 --set eval_iters=1 --set checkpoint_factor=2"
SHORTER = {"exit_interval=150": "exit_interval=4", "1200-1207": "32-39"}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_example_runs(tmp_path: Path) -> None:
    printed = run_example("continued-pretraining.md", tmp_path, SHORT, SHORTER)
    assert "64 samples, of 2 launches" in printed
    assert printed.count("no token was read twice") == 2
    rows = list(metrics.read(tmp_path / "runs" / "continued" / metrics.FILE))
    assert {"validation/code", "validation/english", "validation"} == {
        row["split"] for row in rows if row["event"] == "evaluation"
    }
    assert [row["step"] for row in rows if row["event"] == "step"] == [*range(1, 9)]
