"""The report of `deepy verify`: as text and as JSON."""

from __future__ import annotations

from typing import Any

from neoxargs.base.text import format_percent, wrap
from neoxargs.commands.verify.judge import Verdict
from neoxargs.commands.verify.shrink import SHORT, STEPS
from neoxargs.commands.verify.verify import Report

WIDTH = 100
NOT_COVERED = "GPU kernels and NCCL are not covered: the trials ran on CPUs, with gloo."


def to_text(report: Report) -> str:
    """Return the report as lines of at most WIDTH columns."""
    lines = [_head(report), ""]
    for title, verdicts in (("the run", report.properties), ("the keys", report.settings)):
        lines.append(title)
        for verdict in sorted(verdicts, key=lambda each: ORDER.index(each.outcome)):
            lines += _entry(verdict)
        lines.append("")
    return "\n".join([*lines, _summary(report), NOT_COVERED])


ORDER = ("contradicted", "shown", "not shown")


def _head(report: Report) -> str:
    small, base = report.small, report.base
    shape, parallel = base.shape, base.parallel
    layout = f"tensor {parallel.model_parallel_size} x pipeline {max(1, parallel.pipe_parallel_size)} on "
    layout = f"context {parallel.context_parallel_size} x " * (parallel.context_parallel_size > 1) + layout
    layout += f"{small.ranks} {'rank' if small.ranks == 1 else 'ranks'}"
    return (
        f"{report.count} trials, of {STEPS} steps, or of {SHORT} for single keys: {shape.num_layers} layers of width "
        f"{shape.hidden_size}, sequences of {shape.seq_length}, {layout}"
    )


def _entry(verdict: Verdict) -> list[str]:
    label = f"  {verdict.outcome:<13}{verdict.name}"
    first, *more = wrap(verdict.text, WIDTH - 17, "") or [""]
    text = [f"{'':<17}{line}" for line in (first, *more)]
    return [label, *text] if len(label) + 2 + len(verdict.text) > WIDTH else [f"{label}: {verdict.text}"]


def _summary(report: Report) -> str:
    shown = sum(verdict.outcome == "shown" for verdict in report.settings)
    wrong = [verdict.name for verdict in report.verdicts if verdict.outcome == "contradicted"]
    counted = f"{shown} of {len(report.settings)} keys are shown ({format_percent(shown, len(report.settings))})"
    return f"{counted}; contradicted: {', '.join(wrong) or 'none'}"


def to_json(report: Report) -> dict[str, Any]:
    """Return the report for a program."""

    def rows(verdicts: tuple[Verdict, ...]) -> list[dict[str, Any]]:
        return [{"name": v.name, "outcome": v.outcome, "text": v.text, "about": list(v.keys)} for v in verdicts]

    return {
        "ok": all(verdict.outcome != "contradicted" for verdict in report.verdicts),
        "ranks": report.small.ranks,
        "trials": report.count,
        "reduced": {name: value for name, value in report.small.values.items()},
        "run": rows(report.properties),
        "keys": rows(report.settings),
        "not_covered": NOT_COVERED,
    }
