"""What the text and the page of a plan have in common: its sentences, and the scale of the memory bars."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from neoxargs.base.problems import listed
from neoxargs.base.text import format_bytes, format_number
from neoxargs.hosts.device_table import ASSUMED_DEVICE, UNKNOWN_NAME, other_sizes
from neoxargs.plan.advice.smaller import Suggestion
from neoxargs.plan.estimate import Plan
from neoxargs.plan.given.assumptions import HALF, SINGLE
from neoxargs.plan.given.errors import Interval
from neoxargs.plan.time.roofline import Rates
from neoxargs.runs.summary import LABEL

#: The suggestion where none of the changes tried helps.
NOTHING_FITS = (
    "none of the changes tried makes the run fit: use more devices, devices with more memory, or a smaller model "
    "(deepy plan --search tries every layout)"
)
#: Phase -> when it is, as the end of a sentence.
DURING = {
    "construction": "while the model is built",
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "step": "in the optimizer step",
    "evaluation": "during evaluation",
    "saving": "while a checkpoint is saved",
}
#: The length of the longest bar, in multiples of the usable memory: with more, smaller bars would look empty.
LONGEST = 4


def bytes_of_track(plan: Plan) -> float:
    """Return the memory at the end of each bar's track; a bar of more memory is cut there."""
    largest = max(plan.fullest.peak, plan.target.device.memory or 0)
    return largest if plan.usable is None else min(largest, LONGEST * plan.usable)


def block(label: str, lines: Sequence[str]) -> str:
    """Return lines of text with a label before the first."""
    return "\n".join(f"{(label if not index else '').ljust(LABEL)}{line}".rstrip() for index, line in enumerate(lines))


def ranged(value: float, error: float, form: Callable[[float], str]) -> str:
    """Return a value and its 80 % interval, such as `1.31 s (1.05 to 1.64)`."""
    shown = [form(number) for number in (value, *Interval.of(value, error))]
    units = {text.rpartition(" ")[2] for text in shown}
    low, high = (text.rpartition(" ")[0] or text if len(units) == 1 else text for text in shown[1:])
    return f"{shown[0]} ({low} to {high})"


def priced(plan: Plan, seconds: float) -> str:
    """Return what this time costs, as the continuation of a sentence; empty without a price."""
    cost = plan.cost(seconds)
    if cost is None:
        return ""
    low, high = map(format_number, Interval.of(cost, plan.time_error))
    return f", cost {format_number(cost)} ({low} to {high}) at {plan.target.price:g} per device and hour"


#: Runs that are named at most as those that rates were learned from.
MOST_RUNS = 4
#: Below these odds that a run fits, it does not; a tenth, as the interval is of 80 %.
LEAST_ODDS = 0.1


def verdict(plan: Plan) -> str:
    """Whether the run fits, with its peak memory and the limit that it is compared with."""
    word = "fits" if plan.fits else "does not fit"
    if plan.odds is not None and LEAST_ODDS < plan.odds < 1 - LEAST_ODDS:
        word = f"may not fit (the odds that it fits are {10 * plan.odds:.0f} in 10)"
    fullest, usable, device = plan.fullest, plan.usable, plan.target.device
    host_peak = format_bytes(plan.host_peak)
    host_limit = f"{format_bytes(plan.usable_host_memory)} of the host's {format_bytes(plan.host_memory)}"
    where = f"on stage {fullest.stage.index} " if len(plan.stage_memory) > 1 else ""
    if not plan.host_fits and plan.device_fits:
        return f"{word}: a host needs {host_peak} of memory, but the run can use only {host_limit}"
    peak_memory = ranged(fullest.peak, plan.memory_error, format_bytes)
    peak = f"peak memory is {peak_memory} per rank, {where}{DURING[fullest.peak_phase]}"
    if usable is None:
        if plan.has_verdict:
            needed = f"a host with {ranks_per_host(plan)} needs at most {host_peak}"
            return f"{word}: {peak}; {needed}; the run can use {host_limit}"
        add = f"the device's memory is unknown: add --device {ASSUMED_DEVICE} or --gpu-memory GIB"
        if device.kind == "cpu":
            add = "the host's memory is unknown: add --host-memory GIB"
        return f"no verdict: {peak}{_unfit_for_assumed_device(plan)}; {add}"
    limit = f"{format_bytes(usable)} of the device's {format_bytes(device.memory or 0)}"
    if not plan.device_fits:
        overflow = plan.overflows_in or fullest.peak_phase
        first = fullest.total(overflow)
        later = f" and {format_bytes(fullest.peak)} {DURING[fullest.peak_phase]}" if fullest.peak > first else ""
        needed = f"{where}a rank needs {format_bytes(first)} {DURING[overflow]}{later}"
        return f"{word}: {needed}, more than the usable {limit}"
    return f"{word}: {peak}; the run can use {limit}"


def _unfit_for_assumed_device(plan: Plan) -> str:
    """A note that the device whose speed is assumed could not hold the run; empty where it could."""
    if plan.assumed_limit_exceeded is None:
        return ""
    usable = format_bytes(plan.assumed_limit_exceeded)
    return f" (an {ASSUMED_DEVICE}, whose speed is assumed, has only {usable} of usable memory)"


def ranks_per_host(plan: Plan) -> str:
    """`1 rank` or `8 ranks`."""
    return f"{plan.ranks_per_host} rank{'s' * (plan.ranks_per_host != 1)}"


def describe_effect(suggestion: Suggestion) -> str:
    """Peak memory with a suggested change, and its step time relative to the original's."""
    plan = suggestion.plan
    offloads = any("offload" in key for key in suggestion.changes)
    host = f", {format_bytes(plan.host_peak)} on a host with {ranks_per_host(plan)}" if offloads else ""
    return f"peak memory {format_bytes(plan.fullest.peak)}{host}; {suggestion.cost:.2f} times the current step time"


def assumption_notes(plan: Plan) -> list[str]:
    """The assumptions that affect this plan; docs/plan.md lists all of them with their sources."""
    device = plan.target.device
    beyond = " (whose memory is too small for this run)" if plan.assumed_limit_exceeded else ""
    unnamed = f"speed of an {ASSUMED_DEVICE}{beyond}, because no --device is given"
    assumed, half = plan.target.assumed, plan.config.precision.precision != "fp32"
    rates = Rates.of(device, HALF if half else SINGLE, plan.config.shape.seq_length, assumed)
    notes = [
        f"{unnamed if device.name == UNKNOWN_NAME else device.name}: links of {device.neighbours / 1e9:g} GB/s per "
        f"device within a host, and {device.network / 1e9:g} GB/s per device between hosts; collectives achieve "
        f"{format_number(100 * assumed.link)} % of these rates",
        f"large matrix multiplications run at {format_number(rates.products / 1e12)} TFLOP/s, attention "
        f"at {format_number(rates.attention / 1e12)} TFLOP/s, other kernels at {rates.memory / 1e9:,.0f} GB/s; "
        "deepy plan --assumptions lists all assumptions",
    ]
    wider = f"; they are wider here because of {listed(plan.beyond, 'and')}" if plan.beyond else ""
    learned = plan.target.rates
    if learned:
        notes.append(f"rates learned from {listed(learned.runs, 'and', most=MOST_RUNS)} ({learned.path})")
    source = "what these runs leave open" if learned else "the plan's errors on published runs"
    notes.append(f"80 % intervals in brackets are from {source}{wider}")
    if plan.target.named and (others := other_sizes(plan.target.named)):
        notes.append(f"--device {plan.target.named} means {device.name}; there is also {listed(others, 'and')}")
    if plan.usable is not None:
        notes.append(
            f"{100 * (1 - assumed.usable):.3g} % of the device's memory is kept free, for the driver and for "
            "estimation errors"
        )
    if plan.vocab_assumed:
        tokenizer = plan.config.tokenizer.tokenizer_type
        notes.append(
            f"GPT-2's vocabulary, padded to {plan.vocab_rows:,} rows, because the vocabulary of {tokenizer} is unknown "
            "without its file"
        )
    if plan.config.zero_optimization.stage == 3 and not plan.target.zero_init:
        notes.append(
            "the model is built outside deepspeed.zero.Init: every rank builds its complete tensor parallel shard, "
            "and ZeRO-3 partitions this shard afterwards"
        )
    if plan.tensor_together < plan.layout.tensor:
        notes.append("tensor parallel groups that span hosts communicate at the rate of the network between them")
    return notes
