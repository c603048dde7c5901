"""The time of a run beside what was planned: in the log, in metrics.jsonl and in report.html."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from neoxargs.base.text import format_duration, format_number
from neoxargs.train.track.sections import panel
from neoxargs.train.track.time_spent import BOTH, COMPUTE, DATA, EVALUATION, IN_MESSAGES, MESSAGES, OTHER, SAVING
from neoxargs.train.track.tracker import Comparison

#: The share of the time from which a part that is not planned is named in the log.
NAMED = 0.01
#: What takes longer than planned -> what to do about it.
ADVICE = {
    DATA: "increase num_workers, or move the token files to a faster disk",
    SAVING: "save less often (checkpoint_factor), or set save_in_background",
    EVALUATION: "evaluate less often (eval_interval), or on fewer batches (eval_iters)",
    OTHER: "look for trackers and disks that are slow to write to",
}
LEARN = "`deepy plan --learn RUN --write NAME.rates.yml` finds the rates of this machine (docs/plan.md)"


def expected(compared: Comparison) -> dict[str, float]:
    """Return the planned seconds of the parts that are planned."""
    planned = compared.planned
    sent = sum(planned.parts.get(name, 0.0) for name in IN_MESSAGES)
    of_parts = {COMPUTE: planned.seconds - sent, MESSAGES: sent, BOTH: planned.seconds}
    return {name: of_parts[name] for name in compared.parts if name in of_parts}


def row(compared: Comparison) -> dict[str, Any]:
    """Return the row of metrics.jsonl; times in seconds per step."""
    planned = compared.planned
    return {
        "steps": compared.steps,
        "device": planned.device,
        "seconds": _rounded(compared.seconds),
        "parts": {name: _rounded(seconds) for name, seconds in compared.parts.items()},
        "planned_seconds": _rounded(planned.seconds),
        "planned_interval": [_rounded(planned.low), _rounded(planned.high)],
        "planned_parts": {name: _rounded(seconds) for name, seconds in expected(compared).items()},
        "planned_for": {name: _rounded(seconds) for name, seconds in planned.parts.items()},
        "rates": planned.rates,
        "tokens": planned.tokens,
        "verdict": verdict(compared),
    }


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.4g}")


def line(compared: Comparison) -> str:
    """Return the line of the log."""
    planned, tokens, at = compared.planned, compared.planned.tokens, expected(compared)
    shown = {name: spent for name, spent in compared.parts.items() if name in at or spent >= NAMED * compared.seconds}
    parts = [
        f"{name} {format_duration(spent)}" + (f" (planned {format_duration(at[name])})" if name in at else "")
        for name, spent in shown.items()
    ]
    return " | ".join((
        f"{compared.steps} steps of {format_duration(compared.seconds)}, planned {format_duration(planned.seconds)} "
        f"({format_duration(planned.low)} to {format_duration(planned.high)})",
        f"{format_number(tokens / compared.seconds)} tokens/s, planned {format_number(tokens / planned.seconds)}",
        *parts,
        verdict(compared),
    ))  # fmt: skip


def verdict(compared: Comparison) -> str:
    """Return whether the steps are as planned and, if not, what takes longer and what to do."""
    planned = compared.planned
    if compared.seconds < planned.low:
        return f"faster than planned: {LEARN}"
    if compared.seconds <= planned.high:
        return "as planned"
    at = expected(compared)
    longer = {name: spent - at.get(name, 0.0) for name, spent in compared.parts.items()}
    worst = max(longer, key=lambda name: longer[name])
    return f"slower than planned, most of it {worst}: {ADVICE.get(worst, LEARN)}"


#: Of the section, beside that of a panel.
STYLE = """
.against { margin-top: 12px; } .against p { color: var(--soft); font-size: 13px; margin: 8px 0 0; }
.against td, .against th { padding: 2px 18px 2px 0; text-align: right; }
.against th { color: var(--soft); font-weight: 400; } .against tr > :first-child { text-align: left; }
.against td { font-variant-numeric: tabular-nums; }
"""


def section(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the section of report.html, or "" if nothing was compared. rows: those of metrics.jsonl."""
    found = next((row for row in reversed(rows) if row["event"] == "plan"), None)
    if found is None:
        return ""
    seconds, planned, tokens = found["seconds"], found["planned_seconds"], found["tokens"]
    low, high = found["planned_interval"]
    at = found["planned_parts"]
    cells = [
        ("step", format_duration(seconds), format_duration(planned), *map(format_duration, (low, high))),
        ("tokens/s", *(format_number(tokens / each) for each in (seconds, planned, high, low))),
        *(
            (name, format_duration(spent), format_duration(at[name]) if name in at else "", "", "")
            for name, spent in found["parts"].items()
        ),
    ]
    head = "".join(f"<th>{title}</th>" for title in ("", "measured", "planned", "80 % interval from", "to"))
    body = "".join(
        f"<tr><th>{escape(title)}</th>{''.join(f'<td>{value}</td>' for value in values)}</tr>"
        for title, *values in cells
    )
    about = f"Mean of {found['steps']:,} steps with evaluation and saving, on the host of rank 0, beside the plan for "
    about += f"{found['device']}{found['rates'] and ' with the rates of ' + found['rates']}: "
    about += ", ".join(f"{name} {format_duration(each)}" for name, each in found["planned_for"].items())
    about += f". {found['verdict'].capitalize()}."
    table = f"<table><tr>{head}</tr>{body}</table>"
    return panel("against", "Planned and measured", f"{table}<p>{escape(about)}</p>")
