"""Reads tests/reference: names, defaults, dates and translations of other programs."""

from __future__ import annotations

import csv
import json
from typing import Any

from tests.support.paths import REFERENCE


def read(name: str) -> Any:
    """Return the rows of a .tsv file as dictionaries, or the content of a .json file."""
    with (REFERENCE / name).open(encoding="utf-8", newline="") as file:
        return json.load(file) if name.endswith(".json") else list(csv.DictReader(file, delimiter="\t"))
