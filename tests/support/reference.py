"""Names, defaults, dates and translations of other programs, which this one is compared with."""

from __future__ import annotations

import csv
import json
from typing import Any

from tests.support.paths import REFERENCE


def read(name: str) -> Any:
    """The rows of a table by column, or what a JSON file holds."""
    with (REFERENCE / name).open(encoding="utf-8", newline="") as file:
        return json.load(file) if name.endswith(".json") else list(csv.DictReader(file, delimiter="\t"))
