"""What a plan rests on that no file says, in sentences."""

from __future__ import annotations

from neoxargs.tools.plan import assumptions as assumed
from neoxargs.tools.plan.devices import UNNAMED, USUAL
from neoxargs.tools.plan.placement import across_hosts
from neoxargs.tools.plan.plan import Plan


def notes(plan: Plan) -> list[str]:
    """Assumptions that matter for this plan; docs/plan.md has all of them with their sources."""
    device = plan.target.device
    beyond = " (the run would not fit it)" if plan.beyond else ""
    name = f"an {USUAL}, as nobody names the device{beyond}" if device.name == UNNAMED else device.name
    found = [
        f"{name}: links of {device.neighbours / 1e9:g} GB/s inside a machine and {device.network / 1e9:g} "
        f"GB/s between machines for each device, used to {assumed.LINK_EFFICIENCY:.0%}",
        f"matrix products reach {assumed.EFFICIENCY[assumed.HALF]:.0%} of the device's peak in 16 bits, "
        f"{assumed.EFFICIENCY[assumed.SINGLE]:.0%} in fp32",
        f"{1 - assumed.USABLE:.0%} of a device's memory stays free, because the estimate is good to about that",
    ]
    if plan.rows_assumed:
        tokenizer = plan.config.tokenizer.tokenizer_type
        found.append(f"vocabulary of {plan.rows:,} rows: the real one is known only to {tokenizer} and its file")
    if plan.config.zero_optimization.stage == 3 and not plan.target.zero_init:
        found.append("the model is built whole before ZeRO-3 divides it, as a script without deepspeed.zero.Init does")
    if across_hosts(plan.spec.resources, plan.layout):
        found.append("some tensor parallel groups lie on two machines, which the network makes far slower than told")
    return found
