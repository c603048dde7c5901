"""Sections of report.html that are neither charts nor the description of the run.

The answers to `eval_prompts` show the first and the last one side by side.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

#: Maximum number of answers between the first and the last one that are on the page; metrics.jsonl has all.
MAX_BETWEEN = 12
#: The most spikes in the table, the last ones; metrics.jsonl has all.
MOST_SPIKES = 50

STYLE = """
.panel { background: var(--card); border: 1px solid var(--line); border-radius: 10px; margin-bottom: 12px;
  overflow-x: auto; padding: 12px 18px; }
.panel h2 { font-size: 14px; margin: 0 0 8px; } .panel table { border-collapse: collapse; font-size: 13px; }

.answers h3 { color: var(--soft); font-size: 13px; font-weight: 400;
  margin: 8px 0 2px; }
.answers pre { background: var(--paper); border-radius: 6px; font: 13px/1.45 ui-monospace, Menlo, Consolas, monospace;
  margin: 0; overflow-wrap: anywhere; padding: 8px 10px; white-space: pre-wrap; }
.answers .question { border-top: 1px solid var(--line); padding: 10px 0; }
.answers .question:first-of-type { border-top: 0; padding-top: 0; }
.answers .pair { display: grid; gap: 0 12px; grid-template-columns: repeat(auto-fit, minmax(min(400px, 100%), 1fr)); }
.answers i { color: var(--soft); } summary { color: var(--soft); cursor: pointer; font-size: 13px; margin-top: 8px; }

.spikes td, .spikes th { border-top: 1px solid var(--line); padding: 4px 14px 4px 0; text-align: left; }
"""


def panel(kind: str, title: str, content: str) -> str:
    """Return the section as HTML. kind: its class, by which it has a style of its own. content: HTML."""
    return f'<section class="panel {kind}"><h2>{title}</h2>{content}</section>\n'


def answers(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the section of answers as HTML, or "" without any. rows: those of metrics.jsonl."""
    asked = [row for row in rows if row["event"] == "answers"]
    prompts = [answer["prompt"] for answer in asked[-1]["answers"]] if asked else []
    given = {
        prompt: [(row["step"], each) for row in asked for each in row["answers"] if each["prompt"] == prompt]
        for prompt in prompts
    }
    questions = "".join(_question(prompt, by_iteration) for prompt, by_iteration in given.items())
    return panel("answers", "Answers", questions) if questions else ""


def _question(prompt: str, answers: Sequence[tuple[int, Mapping[str, Any]]]) -> str:
    first, *between = answers
    last = [between.pop()] if between else []
    pair = "".join(_answer(*each) for each in (first, *last))
    more = ""
    if between:
        count = min(len(between), MAX_BETWEEN)  # at equal distances
        some = "".join(_answer(*between[number * len(between) // count]) for number in range(count))
        more = f"<details><summary>answers in between</summary>{some}</details>"
    return f'<div class="question"><h3>prompt</h3>{_text_block(prompt)}<div class="pair">{pair}</div>{more}</div>'


def _answer(iteration: int, answer: Mapping[str, Any]) -> str:
    when = f"after iteration {iteration:,}" if iteration else "before training"
    end = "" if answer["finished"] else " <i>…</i>"  # cut off at maximum_tokens
    return f"<div><h3>{when}</h3>{_text_block(answer['text'], end)}</div>"


def _text_block(text: str, end: str = "") -> str:
    shown = escape(text)
    if not text.strip():  # it would look like an empty box
        shown = f"<i>only white space: {escape(json.dumps(text, ensure_ascii=False))}</i>" if text else "<i>no text</i>"
    # A line end directly after <pre> would be dropped.
    return f"<pre>\n{shown}{end}</pre>"


def spikes(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the section of spikes as HTML, or "" without any. rows: those of metrics.jsonl."""
    found = [row for row in rows if row["event"] == "spike"]
    if not found:
        return ""
    head = _row("th", ["iteration", "quantity", "value", "median", "deviations", "where", "samples", "on_spike"])
    body = "".join(_row("td", _cells(row)) for row in found[-MOST_SPIKES:])
    return panel("spikes", f"Spikes: {len(found)}", f"<table>{head}{body}</table>")


def _cells(row: Mapping[str, Any]) -> list[str]:
    first, last = row["samples"]
    values = (row[name] for name in ("value", "median", "score"))
    numbers = ["not finite" if value is None else f"{value:.4g}" for value in values]
    return [str(row["iteration"]), row["quantity"], *numbers, row["where"], f"{first:,} to {last:,}", row["decision"]]


def _row(kind: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{kind}>{escape(cell)}</{kind}>' for cell in cells)}</tr>"
