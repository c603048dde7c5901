"""The tables of names, defaults and history that the registry is held against.

They lie beside the repository and are not part of it; without them the tests that read them are skipped.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

REFERENCE = Path(__file__).parents[3] / "shared" / "reference"


def rows(name: str) -> list[dict[str, str]]:
    """A table, for parametrising; empty where there is none, so that pytest reports the test as skipped."""
    return read(name) if (REFERENCE / name).exists() else []


def read(name: str) -> Any:
    """The rows of a table, or what a JSON file holds. Skips the test where there is none."""
    path = REFERENCE / name
    if not path.exists():
        pytest.skip(f"no reference table {path}")
    with path.open(encoding="utf-8", newline="") as file:
        return json.load(file) if path.suffix == ".json" else list(csv.DictReader(file, delimiter="\t"))
