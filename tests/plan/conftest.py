"""What the tests of the plan share: a configuration, and the programs in bench/ that they run."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.support import smallest
from tests.support.paths import ROOT


@pytest.fixture
def middle(tmp_path: Path) -> str:
    """The path of a configuration of 1.2 billion parameters."""
    path = tmp_path / "middle.yml"
    path.write_text(smallest.BILLION)
    return str(path)


@pytest.fixture
def bench(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of bench/ whose name the file of the test has as BENCH; the others can be imported too."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return import_module(request.module.BENCH)
