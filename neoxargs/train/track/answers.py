"""The section of report.html with the answers to `eval_prompts`: the first and the last one side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from neoxargs.train.track.panel import panel

#: Maximum number of answers between the first and the last one that are on the page; metrics.jsonl has all.
MAX_BETWEEN = 12

#: Of the section, beside that of a panel.
STYLE = """
.answers h3 { color: var(--soft); font-size: 13px; font-weight: 400;
  margin: 8px 0 2px; }
.answers pre { background: var(--paper); border-radius: 6px; font: 13px/1.45 ui-monospace, Menlo, Consolas, monospace;
  margin: 0; overflow-wrap: anywhere; padding: 8px 10px; white-space: pre-wrap; }
.answers .question { border-top: 1px solid var(--line); padding: 10px 0; }
.answers .question:first-of-type { border-top: 0; padding-top: 0; }
.answers .pair { display: grid; gap: 0 12px; grid-template-columns: repeat(auto-fit, minmax(min(400px, 100%), 1fr)); }
.answers i { color: var(--soft); } summary { color: var(--soft); cursor: pointer; font-size: 13px; margin-top: 8px; }
"""


def section(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the section as HTML, or "" without answers. rows: those of metrics.jsonl."""
    asked = [row for row in rows if row["event"] == "answers"]
    prompts = [answer["prompt"] for answer in asked[-1]["answers"]] if asked else []
    answers = {
        prompt: [(row["step"], each) for row in asked for each in row["answers"] if each["prompt"] == prompt]
        for prompt in prompts
    }
    questions = "".join(_question(prompt, by_iteration) for prompt, by_iteration in answers.items())
    return panel("answers", "Answers", questions) if questions else ""


def _question(prompt: str, answers: Sequence[tuple[int, Mapping[str, Any]]]) -> str:
    first, *between = answers
    last = [between.pop()] if between else []
    pair = "".join(_answer(*each) for each in (first, *last))
    more = ""
    if between:
        some = "".join(_answer(*each) for each in _evenly(between, MAX_BETWEEN))
        more = f"<details><summary>answers in between</summary>{some}</details>"
    return f'<div class="question"><h3>prompt</h3>{_text_block(prompt)}<div class="pair">{pair}</div>{more}</div>'


def _answer(iteration: int, answer: Mapping[str, Any]) -> str:
    when = f"after iteration {iteration:,}" if iteration else "before training"
    end = "" if answer["finished"] else " <i>…</i>"  # cut off at maximum_tokens
    return f"<div><h3>{when}</h3>{_text_block(answer['text'], end)}</div>"


def _text_block(text: str, end: str = "") -> str:
    # A line end directly after <pre> would be dropped.
    return f"<pre>\n{escape(text) if text.strip() else _invisible(text)}{end}</pre>"


def _invisible(text: str) -> str:
    """Describe a text that would look like an empty box."""
    return f"<i>only white space: {escape(json.dumps(text, ensure_ascii=False))}</i>" if text else "<i>no text</i>"


def _evenly(items: Sequence[Any], most: int) -> Sequence[Any]:
    """Return at most `most` of the items, at equal distances."""
    if len(items) <= most:
        return items
    return [items[number * len(items) // most] for number in range(most)]
