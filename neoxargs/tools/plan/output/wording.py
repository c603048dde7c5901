"""Numbers as a person reads them, and the verdict in one sentence."""

from __future__ import annotations

from neoxargs.tools.plan.advice import Suggestion
from neoxargs.tools.plan.assumptions import GIB
from neoxargs.tools.plan.devices import USUAL
from neoxargs.tools.plan.plan import Plan

#: What a rank is doing in each phase.
DOING = {
    "construction": "while the model is built",
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "step": "in the optimizer step",
}


def verdict(plan: Plan) -> str:
    """Does it fit, and by how much."""
    worst, usable, device = plan.worst, plan.usable, plan.target.device
    where = f"on stage {worst.stage.index} " if len(plan.accounts) > 1 else ""
    if not plan.host_fits and plan.device_fits:
        return f"does not fit: a machine needs {size(plan.host_need)} of memory and has {size(plan.host_memory)}"
    peak = f"a rank needs {size(worst.peak)} at its peak, {where}{DOING[worst.fullest]}"
    if usable is None:
        if plan.known:
            return f"fits: {peak}; {plan.slots} of them at most {size(plan.host_need)} of {size(plan.host_memory)}"
        return f"no verdict: {peak}{_beyond(plan)}; no device is known: add --device {USUAL}"
    limit = f"{size(usable)} that may be used of the device's {size(device.memory or 0)}"
    if not plan.device_fits:
        breaks = plan.breaks or worst.fullest
        first = worst.total(breaks)
        later = f" and {size(worst.peak)} {DOING[worst.fullest]}" if worst.peak > first else ""
        return f"does not fit: {where}a rank needs {size(first)} {DOING[breaks]}{later}, more than the {limit}"
    return f"fits: {size(worst.peak)} at the peak, {where}{DOING[worst.fullest]}, of the {limit}"


def _beyond(plan: Plan) -> str:
    """A speed is told all the same, so that it rests on a device that could not hold the run."""
    if plan.beyond is None:
        return ""
    return f"; it would not fit the {USUAL} whose speed is assumed, of which {size(plan.beyond)} may be used"


def price(suggestion: Suggestion) -> str:
    """What a change takes and costs."""
    made = suggestion.plan
    moved = any("offload" in key for key in suggestion.changes)
    host = f", and {size(made.host_need)} in a machine of {made.slots} ranks" if moved else ""
    return f"peak {size(made.worst.peak)}{host}; a step takes {suggestion.cost:.2f} times as long"


def size(number: float) -> str:
    """`23.2 GiB`."""
    for unit, factor in (("TiB", 1024 * GIB), ("GiB", GIB), ("MiB", 2**20), ("KiB", 2**10)):
        if number >= factor:
            digits = f"{number / factor:#.3g}".rstrip(".")
            return f"{digits} {unit}" if number < 999.5 * factor else f"{number / factor:.0f} {unit}"
    return f"{number:.0f} B"


def count(number: float) -> str:
    """`2.65 B`: thousand, million, billion, trillion."""
    for unit, factor in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if number >= factor:
            return f"{number / factor:.3g} {unit}"
    return f"{number:.0f}"


def duration(seconds: float) -> str:
    """In the unit a person would use."""
    for unit, factor in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * factor:
            return f"{figures(seconds / factor)} {unit}"
    return f"{figures(seconds)} s" if seconds >= 1 else f"{figures(seconds * 1000)} ms"


def figures(number: float) -> str:
    """Three significant digits, as `0.00073`, `46.2` or `6,210`: an exponent only where nobody counts zeros."""
    if number == 0 or not 1e-4 <= number < 1e15:
        return f"{number:.3g}"
    return f"{float(f'{number:.3g}'):,.0f}" if number >= 100 else f"{number:.3g}"


def share(number: float, of: float) -> str:
    """In percent."""
    value = 100 * number / of
    return f"{value:.0f} %" if value >= 1 else f"{value:.1g} %" if value >= 0.01 else "<0.01 %"
