"""The spikes of a run as a section of report.html."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from neoxargs.train.track.panel import panel

#: The most spikes in the table, the last ones; metrics.jsonl has all.
MOST = 50
#: Of the section, beside that of a panel.
STYLE = """
.spikes td, .spikes th { border-top: 1px solid var(--line); padding: 4px 14px 4px 0; text-align: left; }
"""


def section(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the section as HTML, or "" without spikes. rows: those of metrics.jsonl."""
    found = [row for row in rows if row["event"] == "spike"]
    if not found:
        return ""
    head = _row("th", ["iteration", "quantity", "value", "median", "deviations", "where", "samples", "on_spike"])
    body = "".join(_row("td", _cells(row)) for row in found[-MOST:])
    return panel("spikes", f"Spikes: {len(found)}", f"<table>{head}{body}</table>")


def _cells(row: Mapping[str, Any]) -> list[str]:
    first, last = row["samples"]
    numbers = [_number(row[name]) for name in ("value", "median", "score")]
    return [str(row["iteration"]), row["quantity"], *numbers, row["where"], f"{first:,} to {last:,}", row["decision"]]


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"


def _row(kind: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{kind}>{escape(cell)}</{kind}>' for cell in cells)}</tr>"
