"""The spikes of a run as a section of report.html."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

#: The most spikes in the table, the last ones; metrics.jsonl has all.
MOST = 50
STYLE = """
.spikes { background: var(--card); border: 1px solid var(--line); border-radius: 10px; margin-bottom: 12px;
  overflow-x: auto; padding: 12px 18px; }
.spikes h2 { font-size: 14px; margin: 0 0 8px; } .spikes table { border-collapse: collapse; font-size: 13px; }
.spikes td, .spikes th { border-top: 1px solid var(--line); padding: 4px 14px 4px 0; text-align: left; }
"""


def section(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the section as HTML, or "" without spikes. rows: those of metrics.jsonl."""
    found = [row for row in rows if row["event"] == "spike"]
    if not found:
        return ""
    head = _row("th", ["iteration", "quantity", "value", "median", "deviations", "where", "samples", "on_spike"])
    body = "".join(_row("td", _cells(row)) for row in found[-MOST:])
    return f'<section class="spikes"><h2>Spikes: {len(found)}</h2><table>{head}{body}</table></section>\n'


def _cells(row: Mapping[str, Any]) -> list[str]:
    first, last = row["samples"]
    numbers = [_number(row[name]) for name in ("value", "median", "score")]
    return [str(row["iteration"]), row["quantity"], *numbers, row["where"], f"{first:,} to {last:,}", row["decision"]]


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"


def _row(kind: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{kind}>{escape(cell)}</{kind}>' for cell in cells)}</tr>"
