"""The plan as JSON, what `deepy plan --json` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from neoxargs.base.problems import Problem
from neoxargs.base.record import as_dict
from neoxargs.plan.advice.smaller import Suggestion
from neoxargs.plan.estimate import Plan
from neoxargs.plan.given.errors import Interval
from neoxargs.plan.given.placement import rank_placements
from neoxargs.plan.memory import experts
from neoxargs.plan.memory.breakdown import RankMemory
from neoxargs.plan.output.wording import assumption_notes, verdict
from neoxargs.plan.time.speed import Speed, bubble_share
from neoxargs.runs import summary


def to_json(plan: Plan, suggestions: Sequence[Suggestion], left_out: Sequence[Problem] = ()) -> dict[str, Any]:
    """Return the plan. Sizes in bytes, times in seconds.

    placements: [host, slot, tensor, pipe, data, context] of each rank.
    left_out: what the plan does not contain of another program's script.
    """
    return {
        "ok": plan.fits,
        "problems": [problem.to_json() for problem in (*left_out, *plan.warnings)],
        "fits": plan.fits if plan.has_verdict else None,
        "odds": plan.odds,
        "verdict": verdict(plan).partition(": ")[0],
        "overflows_in": plan.overflows_in,
        "planned_for": {"name": plan.target.device.name, "memory": plan.target.device.memory, "usable": plan.usable},
        **summary.to_json(plan.spec),
        "parts": plan.parts,
        "experts_on_rank": experts.held(plan.config) if experts.share(plan.config) else 0,
        "parameters": sum(plan.parts.values()),
        "vocabulary_rows": plan.vocab_rows,
        "stages": [_stage(rank, plan.memory_error) for rank in plan.stage_memory],
        "host": {
            "peak": plan.host_peak,
            "memory": plan.target.host_memory,
            "interval": {"peak": Interval.of(plan.host_peak, plan.host_error)},
        },
        "speed": _speed(plan.speed, plan.time_error)
        | {"peak_share": plan.peak_share, "bubble_share": bubble_share(plan.config)},
        "cost": plan.cost(plan.speed.total),
        "suggestions": [
            {"set": dict(each.changes), "peak": each.plan.fullest.peak, "cost": each.cost} for each in suggestions
        ],
        "beyond": plan.beyond,
        "assumptions": assumption_notes(plan),
        "assumed": vars(plan.target.assumed),
        "placements": [list(placement)[1:] for placement in rank_placements(plan.spec.resources, plan.layout)],
    }


def _stage(rank: RankMemory, error: float) -> dict[str, Any]:
    stage = rank.stage
    held = {name: getattr(rank, name) for name in ("phases", "allocated", "reserved", "occupied", "host")}
    sizes = {"parameters": stage.parameters, "parts": stage.parts}
    at_peak = {"peak": rank.peak, "peak_phase": rank.peak_phase, "interval": {"peak": Interval.of(rank.peak, error)}}
    return {"stage": stage.index, "layers": list(stage.layers), **sizes, **at_peak, **held}


def _speed(speed: Speed, error: float) -> dict[str, Any]:
    derived = ("step", "total", "tokens_per_second", "tflops_per_device")
    values = {name: getattr(speed, name) for name in derived}
    lengths = list(speed.lengths.begins) if speed.lengths else None
    fields = as_dict(speed) | {"volume": as_dict(speed.volume), "lengths": lengths}
    del fields["sizes"]
    return fields | values | {"interval": {name: Interval.of(value, error) for name, value in values.items()}}
