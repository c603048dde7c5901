"""The scale of the memory bars, in the text and on the page."""

from __future__ import annotations

from neoxargs.plan.estimate import Plan

#: The length of the longest bar, in multiples of the usable memory: with more, smaller bars would look empty.
LONGEST = 4


def bytes_of_track(plan: Plan) -> float:
    """Return the memory at the end of each bar's track; a bar of more memory is cut there."""
    largest = max(plan.fullest.peak, plan.target.device.memory or 0)
    return largest if plan.usable is None else min(largest, LONGEST * plan.usable)
