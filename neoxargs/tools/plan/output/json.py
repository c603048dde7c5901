"""The plan for a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from neoxargs.launch.report import summary
from neoxargs.tools.plan.advice import Suggestion
from neoxargs.tools.plan.memory.breakdown import Account
from neoxargs.tools.plan.output.assumption_notes import notes
from neoxargs.tools.plan.placement import seats
from neoxargs.tools.plan.plan import Plan
from neoxargs.tools.plan.speed import Speed, bubble_share


def facts(plan: Plan, found: Sequence[Suggestion]) -> dict[str, Any]:
    """Sizes in bytes, times in seconds. ranks: [host, slot, tensor, pipe, data] in rank order."""
    return {
        "ok": plan.fits,
        "problems": [problem.to_json() for problem in plan.spec.warnings],
        "fits": plan.fits if plan.known else None,
        "breaks": plan.breaks,
        "device": {"name": plan.target.device.name, "memory": plan.target.device.memory, "usable": plan.usable},
        **summary.facts(plan.spec),
        "parts": plan.parts,
        "parameters": sum(plan.parts.values()),
        "vocabulary_rows": plan.rows,
        "stages": [_stage(account) for account in plan.accounts],
        "host": {"need": plan.host_need, "memory": plan.target.host_memory},
        "speed": _speed(plan.speed) | {"bubble_share": bubble_share(plan.config)},
        "instead": [_suggestion(suggestion) for suggestion in found],
        "assumed": notes(plan),
        "ranks_at": [list(seat)[1:] for seat in seats(plan.spec.resources, plan.layout)],
    }


def _stage(account: Account) -> dict[str, Any]:
    stage = account.stage
    return {
        "stage": stage.index,
        "layers": list(stage.layers),
        "parameters": stage.parameters,
        "parts": stage.parts,
        "peak": account.peak,
        "fullest": account.fullest,
        "phases": account.phases,
        "host": account.host,
    }


def _speed(speed: Speed) -> dict[str, Any]:
    derived = ("step", "total", "tokens_per_second", "tflops_per_device")
    return asdict(speed) | {name: getattr(speed, name) for name in derived}


def _suggestion(suggestion: Suggestion) -> dict[str, Any]:
    return {"set": dict(suggestion.changes), "peak": suggestion.plan.worst.peak, "cost": suggestion.cost}
