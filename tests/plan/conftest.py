"""A configuration that the tests of the plan share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import smallest


@pytest.fixture
def middle(tmp_path: Path) -> str:
    """The path of a configuration of 1.2 billion parameters."""
    path = tmp_path / "middle.yml"
    path.write_text(smallest.BILLION)
    return str(path)
