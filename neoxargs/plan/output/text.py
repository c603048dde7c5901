"""The plan as text for a terminal: one labelled block per subject, the verdict first."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from neoxargs.base.problems import in_colour
from neoxargs.base.text import (
    GIB,
    NO_BREAK_SPACE,
    format_bytes,
    format_count,
    format_duration,
    format_number,
    format_percent,
    protect_names,
    wrap,
)
from neoxargs.facts.attention_kernels import Place, choices, describe_kernels
from neoxargs.facts.batch_sizes import BatchSizes
from neoxargs.facts.gradient_sum import gradient_sum
from neoxargs.plan.advice.smaller import Suggestion
from neoxargs.plan.estimate import Plan
from neoxargs.plan.given.placement import host_range, hosts_of_stages
from neoxargs.plan.memory import experts
from neoxargs.plan.memory.breakdown import PARTS, PHASES, RankMemory
from neoxargs.plan.output.wording import (
    NOTHING_FITS,
    assumption_notes,
    block,
    bytes_of_track,
    describe_effect,
    priced,
    ranged,
    ranks_per_host,
    verdict,
)
from neoxargs.runs import summary

LABEL = summary.LABEL
BAR = 44
#: Blocks whose lines are wrapped; tables and command lines are not.
WRAPPED = ("plan", "model", "ranks", "context", "batch", "host", "speed", "volume", "assumed")
#: The most stages that are listed.
MAX_STAGES = 8


def to_text(plan: Plan, suggestions: Sequence[Suggestion]) -> str:
    """Return the plan and the suggested changes as lines of at most 100 columns; tables may be wider."""
    rows = [
        ("plan", [verdict(plan)]),
        ("faster" if plan.fits else "would fit", list(_suggestions(plan, suggestions))),
        *_run_rows(plan),
        ("stages", list(_stages(plan))),
        ("memory", list(_memory(plan))),
        ("", list(_bars(plan))),
        ("host", list(_host(plan))),
        ("speed", list(_speed(plan))),
        ("volume", list(_communication_volume(plan))),
        ("assumed", assumption_notes(plan)),
    ]
    names, blocks = plan.config.file_names(), []
    for label, lines in rows:
        if label in WRAPPED:
            lines = [part for line in lines for part in wrap(protect_names(line, names), summary.WIDTH - LABEL)]
        if lines:
            blocks.append(block(label, lines))
    if in_colour(sys.stdout):
        blocks[0] = f"\033[1;{32 if plan.fits else 31}m{blocks[0]}\033[0m"
    return "\n\n".join(blocks)


def _run_rows(plan: Plan) -> Iterator[tuple[str, list[str]]]:
    """Model, ranks and batch as `check` prints them, and the parameters of each part of the model."""
    lines = {line[:LABEL].strip(): line[LABEL:] for line in summary.brief_lines(plan.spec)}
    parts = ", ".join(
        f"{part} {format_count(number)}".replace(" ", NO_BREAK_SPACE) for part, number in plan.parts.items()
    )
    precision = plan.config.precision.precision.replace("bfloat16", "bf16")
    yield "model", [f"{lines['model']}; {precision}", f"{format_count(sum(plan.parts.values()))} parameters: {parts}"]
    if experts.share(plan.config):
        held, count = experts.held(plan.config), plan.config.moe.moe_num_experts
        sharded = plan.layout.tensor > 1 and plan.config.moe.enable_expert_tensor_parallelism
        each = f"each rank holds {held if held < count else 'all'} of them{' as tensor parallel shards' * sharded}"
        yield "experts", [f"{count} per layer; {each}; each token is processed by {plan.config.moe.moe_top_k}"]
    yield from ((label, [lines[label]]) for label in ("ranks", "context", "batch") if label in lines)


def _stages(plan: Plan) -> Iterator[str]:
    hosts = hosts_of_stages(plan.spec.resources, plan.layout)
    yield f"{'stage':<6}{'layers':<9}{'parameters':>11}{'peak':>9}  {'phase':<14}{'ranks':<13}hosts"
    for rank in _listed_stages(plan):
        stage, layers = rank.stage, rank.stage.layers
        in_stage = plan.layout.tensor * plan.layout.with_same_weights
        ranks = range(stage.index * in_stage, plan.layout.ranks)
        last = ranks[0] + in_stage - 1
        held = f"{layers[0]}-{layers[-1]}" if layers else "none"
        numbers = f"{ranks[0]}-{last}" if last > ranks[0] else str(last)
        yield (
            f"{stage.index:<6}{held:<9}{format_count(stage.parameters):>11}{format_bytes(rank.peak):>9}  "
            f"{rank.peak_phase:<14}{numbers:<13}{host_range(hosts[stage.index])}"
        )
    if len(plan.stage_memory) > MAX_STAGES:
        yield f"... {len(plan.stage_memory)} stages in total"


def _listed_stages(plan: Plan) -> list[RankMemory]:
    """All stages; of more than MAX_STAGES the first ones, the one with the highest peak and the last."""
    if len(plan.stage_memory) <= MAX_STAGES:
        return plan.stage_memory
    chosen = {*range(MAX_STAGES - 2), plan.fullest.stage.index, len(plan.stage_memory) - 1}
    return [plan.stage_memory[index] for index in sorted(chosen)]


def _memory(plan: Plan) -> Iterator[str]:
    fullest = plan.fullest
    name, unit = ("GiB", GIB) if fullest.peak >= GIB else ("MiB", 2**20)
    of_stage = f" of stage {fullest.stage.index}, which has the highest peak" if len(plan.stage_memory) > 1 else ""
    yield f"{name} on each rank{of_stage}"
    yield f"{'':<14}" + "".join(f"{phase:>13}" for phase in PHASES)
    for part in PARTS:
        sizes = [fullest.phases[phase].get(part, 0) for phase in PHASES]
        if any(sizes):
            yield f"{part:<14}" + "".join(f"{_cell(number / unit):>13}" for number in sizes)
    yield f"{'total':<14}" + "".join(f"{_cell(fullest.total(phase) / unit):>13}" for phase in PHASES)
    if plan.target.device.kind == "cuda":
        allocated, reserved, shown = map(format_bytes, (fullest.allocated, fullest.reserved, fullest.occupied))
        yield f"at the peak, tensors use {allocated}, torch's allocator reserves {reserved}, nvidia-smi shows {shown}"


def _cell(number: float) -> str:
    """A dot for 0, because most cells of the table are 0."""
    return "." if not number else f"{number:,.1f}" if number >= 0.05 else "<0.1"


def _bars(plan: Plan) -> Iterator[str]:
    """A bar for each phase, with a mark where the usable memory ends; `»` ends a bar that is cut."""
    if plan.usable is None:
        return
    limit = round(BAR * plan.usable / (scale := bytes_of_track(plan)))
    for phase in PHASES:
        total = plan.fullest.total(phase)
        filled = min(max(1, round(BAR * total / scale)), BAR)
        cells = [*"█" * filled, *"·" * (BAR - filled)]
        if limit < BAR:
            cells[limit] = "┃"
        if total > scale:
            cells[-1] = "»"
        yield f"{phase:<13}{''.join(cells)}  {format_percent(total, plan.usable)} of the usable memory"


def _host(plan: Plan) -> Iterator[str]:
    host_memory = ranged(plan.host_peak, plan.host_error, format_bytes)
    if plan.target.device.kind == "cpu":
        yield f"{host_memory} on a host with {ranks_per_host(plan)}, including the ranks' memory"
        return
    parts = max(plan.stage_memory, key=lambda rank: rank.host_peak).host
    words = {"processes": "Python and torch", "saving": "copies for saving", "rounding": "lost to pinning"}
    each = ", ".join(f"{words.get(part, part)} {format_bytes(number)}" for part, number in parts.items() if number)
    yield f"{host_memory} on a host with {ranks_per_host(plan)}; per rank: {each}"


def _speed(plan: Plan) -> Iterator[str]:
    estimate, error = plan.speed, plan.time_error
    device, training = plan.target.device, plan.config.training
    yield (
        f"about {ranged(estimate.tflops_per_device, error, format_number)} TFLOP/s per {device.name} "
        f"({format_percent(plan.peak_share, 1)} of its peak rate), "
        f"{ranged(estimate.tokens_per_second, error, format_number)} tokens/s, "
        f"{ranged(estimate.step, error, format_duration)} per step"
    )
    sizes = BatchSizes.of(plan.config.get)
    smaller = min(sizes.stages[-1].iteration, training.train_iters) if sizes.changes else 0
    ramp = f", {smaller:,} of them with a smaller batch," if smaller else ""
    in_all = f"{training.train_iters:,} steps{ramp} in about {ranged(estimate.total, error, format_duration)}"
    yield f"{in_all}{priced(plan, estimate.total)}"
    yield f"{format_number(estimate.flops_per_token)} floating-point operations per token, forward and backward"
    kernels = choices(plan.config, Place(plan.target.device.kind))
    if any(choice.kernel != "sdpa" or choice.asked.words for choice in kernels):
        yield f"attention: {describe_kernels(kernels)}"
    terms = estimate.components.items()
    shares = (f"{name} {format_percent(seconds, estimate.step)}" for name, seconds in terms if seconds)
    yield ", ".join(shares).replace(" %", f"{NO_BREAK_SPACE}%")


def _communication_volume(plan: Plan) -> Iterator[str]:
    sent = plan.speed.volume
    kinds = {
        "tensor parallelism": sent.tensor, "pipeline": sent.pipe, "data parallelism": sent.data,
        "expert parallelism": sent.experts, "context parallelism": sent.context, "offloading": sent.host,
    }  # fmt: skip
    volumes = [f"{name} {format_bytes(number)}" for name, number in kinds.items() if number]
    if volumes:
        yield f"sent by each rank in one step: {', '.join(volumes)}"
    if words := gradient_sum(plan.config).describe():
        yield words


def _suggestions(plan: Plan, suggestions: Sequence[Suggestion]) -> Iterator[str]:
    if not plan.fits and not suggestions:
        yield NOTHING_FITS
    for number, suggestion in enumerate(suggestions, 1):
        yield f"{number}. {' '.join(f'--set {override}' for override in suggestion.overrides)}"
        yield f"   {describe_effect(suggestion)}"
    if suggestions and not plan.fits:
        yield "deepy plan --search compares all layouts"
