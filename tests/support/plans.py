"""Plans of a configuration with overrides."""

from __future__ import annotations

from typing import Any

from neoxargs.plan.command import plan_of
from neoxargs.plan.estimate import Plan
from neoxargs.plan.given.options import PlanOptions


def planned(path: str, *changes: str, gpus: int = 8, **options: Any) -> Plan:
    """Return the plan of a file with these `--set` options. options: of PlanOptions."""
    return plan_of(PlanOptions([path], changes, gpus=gpus, **options))
