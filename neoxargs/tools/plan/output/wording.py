"""A plan in sentences: the verdict, what a change costs, what is assumed."""

from __future__ import annotations

from neoxargs.text import format_bytes
from neoxargs.tools.plan import assumptions
from neoxargs.tools.plan.advice import Suggestion
from neoxargs.tools.plan.devices import ASSUMED_DEVICE, UNKNOWN_NAME
from neoxargs.tools.plan.placement import tensor_groups_cross_hosts
from neoxargs.tools.plan.plan import Plan

#: What a rank is doing in each phase.
DOING = {
    "construction": "while the model is built",
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "step": "in the optimizer step",
}


def verdict(plan: Plan) -> str:
    """Whether it fits, and by how much."""
    fullest, usable, device = plan.fullest, plan.usable, plan.target.device
    host_peak, host_memory = format_bytes(plan.host_peak), format_bytes(plan.host_memory)
    where = f"on stage {fullest.stage.index} " if len(plan.stage_memory) > 1 else ""
    if not plan.host_fits and plan.device_fits:
        return f"does not fit: a machine needs {host_peak} of memory and has {host_memory}"
    peak = f"a rank needs {format_bytes(fullest.peak)} at its peak, {where}{DOING[fullest.peak_phase]}"
    if usable is None:
        if plan.has_verdict:
            return f"fits: {peak}; {plan.ranks_per_host} of them at most {host_peak} of {host_memory}"
        return f"no verdict: {peak}{_unfit_for_assumed_device(plan)}; no device is known: add --device {ASSUMED_DEVICE}"
    limit = f"{format_bytes(usable)} that may be used of the device's {format_bytes(device.memory or 0)}"
    if not plan.device_fits:
        breaks = plan.overflows_in or fullest.peak_phase
        first = fullest.total(breaks)
        later = f" and {format_bytes(fullest.peak)} {DOING[fullest.peak_phase]}" if fullest.peak > first else ""
        return f"does not fit: {where}a rank needs {format_bytes(first)} {DOING[breaks]}{later}, more than the {limit}"
    return f"fits: {format_bytes(fullest.peak)} at the peak, {where}{DOING[fullest.peak_phase]}, of the {limit}"


def _unfit_for_assumed_device(plan: Plan) -> str:
    """The speed is estimated all the same, for a device that could not hold the run."""
    if plan.assumed_limit_exceeded is None:
        return ""
    usable = format_bytes(plan.assumed_limit_exceeded)
    return f"; it would not fit the {ASSUMED_DEVICE} whose speed is assumed, of which {usable} may be used"


def price(suggestion: Suggestion) -> str:
    """The peak with a change, and by how much it slows a step."""
    made = suggestion.plan
    moved = any("offload" in key for key in suggestion.changes)
    host = f", and {format_bytes(made.host_peak)} in a machine of {made.ranks_per_host} ranks" if moved else ""
    return f"peak {format_bytes(made.fullest.peak)}{host}; a step takes {suggestion.cost:.2f} times as long"


def assumption_notes(plan: Plan) -> list[str]:
    """Assumptions that matter for this plan; docs/plan.md has all of them with their sources."""
    device = plan.target.device
    beyond = " (the run would not fit it)" if plan.assumed_limit_exceeded else ""
    name = f"an {ASSUMED_DEVICE}, as nobody names the device{beyond}" if device.name == UNKNOWN_NAME else device.name
    found = [
        f"{name}: links of {device.neighbours / 1e9:g} GB/s inside a machine and {device.network / 1e9:g} "
        f"GB/s between machines for each device, used to {assumptions.LINK_EFFICIENCY:.0%}",
        f"matrix products reach {assumptions.EFFICIENCY[assumptions.HALF]:.0%} of the device's peak in 16 bits, "
        f"{assumptions.EFFICIENCY[assumptions.SINGLE]:.0%} in fp32",
        f"{1 - assumptions.USABLE:.0%} of a device's memory stays free, because the estimate is good to about that",
    ]
    if plan.vocab_assumed:
        tokenizer = plan.config.tokenizer.tokenizer_type
        found.append(f"vocabulary of {plan.vocab_rows:,} rows: the real one is known only to {tokenizer} and its file")
    if plan.config.zero_optimization.stage == 3 and not plan.target.zero_init:
        found.append("the model is built whole before ZeRO-3 divides it, as a script without deepspeed.zero.Init does")
    if tensor_groups_cross_hosts(plan.spec.resources, plan.layout):
        found.append("some tensor parallel groups lie on two machines, which the network makes far slower than told")
    return found
