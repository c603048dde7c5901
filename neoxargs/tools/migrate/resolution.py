"""What files resolve to, even where `check` would refuse them."""

from __future__ import annotations

from neoxargs.problems import Problem
from neoxargs.resolve import Config, Draft
from neoxargs.resolve.derive import Unresolved, complete


def resolved(drafted: Draft, gpus: int | None) -> tuple[Config, list[Problem]]:
    """The configuration, or what of it is certain, with the errors; raises Problems if the files cannot be read."""
    try:
        return complete(drafted, gpus), []
    except Unresolved as stop:
        return stop.certain, [problem for problem in stop.problems if problem.severity == "error"]
