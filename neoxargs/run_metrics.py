"""The record of a run, metrics.jsonl in its folder, which `train/track/metrics.py` writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FILE = "metrics.jsonl"


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a metrics file, without an incomplete last line, which a killed run may leave."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        for text in file:
            if text.endswith("\n"):
                yield json.loads(text)
