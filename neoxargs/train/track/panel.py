"""A section of report.html that is neither a chart nor the description of the run."""

from __future__ import annotations

STYLE = """
.panel { background: var(--card); border: 1px solid var(--line); border-radius: 10px; margin-bottom: 12px;
  overflow-x: auto; padding: 12px 18px; }
.panel h2 { font-size: 14px; margin: 0 0 8px; } .panel table { border-collapse: collapse; font-size: 13px; }
"""


def panel(kind: str, title: str, content: str) -> str:
    """Return the section as HTML. kind: its class, by which it has a style of its own. content: HTML."""
    return f'<section class="panel {kind}"><h2>{title}</h2>{content}</section>\n'
